"""References of classes with an encoder in front of their decoder. A prompt is the encoder's input, and from its second token on
the decoder's too; where the encoder reads audio, its input is one spectrogram for all prompts, and the prompt the decoder's."""
import numpy as np
import torch
from reference_model import Reference

MOST_DECODER_TOKENS = 40


class EncoderDecoderReference(Reference):
    def adjust(self, model):
        """Greedy tokens are those of the bare model: none is suppressed."""
        if self._reads_audio():
            self.config.suppress_tokens = self.config.begin_suppress_tokens = None

    def call(self, model, ids, **more):
        return model(**self._inputs(model, ids), decoder_input_ids=self._decoder_ids(ids), **more)

    def _features(self):
        frames = 2 * self.config.max_source_positions
        rng = np.random.default_rng(200 + self.seed)
        return rng.standard_normal((1, self.config.num_mel_bins, frames)).astype(np.float32)

    def _reads_audio(self):
        return hasattr(self.config, "num_mel_bins")

    def _inputs(self, model, ids):
        if self._reads_audio():
            return {"input_features": torch.tensor(self._features()).to(next(model.parameters()).dtype)}
        return {"input_ids": ids}

    def _decoder_ids(self, ids):
        return torch.cat([torch.tensor([[self.config.decoder_start_token_id]]), ids[:, 1:MOST_DECODER_TOKENS]], 1)

    def shared_tensors(self):
        return {"input_features": self._features()} if self._reads_audio() else {}

    def results(self, model, ids):
        found = super().results(model, ids)
        with torch.no_grad():
            encoded = model.get_encoder()(**self._inputs(model, ids)).last_hidden_state
        return {**found, "encoder_hidden": encoded[0].double().numpy(),
                "decoder_input_ids": self._decoder_ids(ids)[0].numpy().astype(np.int32)}

    def greedy(self, model, ids, count):
        """What follows the decoder's first token."""
        tokens, margins = [], []
        decoder = torch.tensor([[self.config.decoder_start_token_id]])
        for _ in range(count):
            with torch.no_grad():
                out = model(**self._inputs(model, ids), decoder_input_ids=decoder, use_cache=False)
            top = torch.topk(out.logits[0, -1], 2)
            tokens.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
            decoder = torch.cat([decoder, torch.tensor([[tokens[-1]]])], 1)
        return np.array(tokens, np.int32), np.array(margins, np.float32)

    def cached_greedy(self, model, ids, count):
        with torch.no_grad():
            inputs = self._inputs(model, ids)
            encoded, cache, tokens = model.get_encoder()(**inputs), None, []
            decoder = torch.tensor([[self.config.decoder_start_token_id]])
            for _ in range(count):
                out = model(encoder_outputs=encoded, decoder_input_ids=decoder, past_key_values=cache, use_cache=True)
                cache, decoder = out.past_key_values, out.logits[:, -1:].argmax(-1)
                tokens.append(int(decoder))
        return np.array(tokens)
