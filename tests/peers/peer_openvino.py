"""OpenVINO GenAI's turns, by LLMPipeline, which reads GGUF files itself.

Its defaults on the CPU: what it makes of the file's weights, its precision of activations and of keys and values. The times are
those of its own metrics: until the first token, and the rest of the generation.
"""
import numpy as np
import openvino
import openvino_genai


class OpenVino:
    def __init__(self, settings):
        self.version = openvino_genai.__version__
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
