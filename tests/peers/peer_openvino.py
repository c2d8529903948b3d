"""OpenVINO GenAI's turns, by LLMPipeline, which reads GGUF files itself.

Its defaults on the CPU: what it makes of the file's weights, activations in bfloat16 where the machine has instructions for it and
keys and values of 8 bits (the version tells both). The times are those of its own metrics: until the first token, and the rest
of the generation.
"""
import numpy as np
import openvino
import openvino_genai


class OpenVino:
    def __init__(self, settings):
        cpu = openvino.Core()
        activations = cpu.get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
        keys = cpu.get_property("CPU", "KV_CACHE_PRECISION").to_string()
        self.version = f"{openvino_genai.__version__}, activations {activations}, keys and values {keys}"
        self.pipeline = openvino_genai.LLMPipeline(settings.model, "CPU", INFERENCE_NUM_THREADS=settings.threads)
        self.vocab_size = None  # the pipeline does not tell

    def turn(self, tokens, count):
        ids = np.array([tokens], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count + 1, True, False
        metrics = self.pipeline.generate(inputs, config).perf_metrics
        if metrics.get_num_generated_tokens() != count + 1:
            raise RuntimeError(f"{metrics.get_num_generated_tokens()} tokens were generated, not {count + 1}")
        prefill = metrics.get_ttft().mean / 1e3
        return prefill, metrics.get_generate_duration().mean / 1e3 - prefill
