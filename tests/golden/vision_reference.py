"""References of classes with an encoder for images. Every prompt pN becomes one with an image, pN_img, whose tokens stand within
those of pN; the last but one is there as text alone and with two images, pN_two_img, too. An image is random pixels: of the
encoder's one size, or for encoders that take patches a grid, another for each prompt.

    golden.safetensors  pN_img.pixel_values as the class takes them, pN_img.image_grid_thw [images, 3] of patches
"""
import numpy as np
import torch
from reference_model import Reference

# Rows and columns of what the decoder sees.
GRIDS = [(2, 3), (5, 7), (3, 1), (1, 4)]


class VisionReference(Reference):
    def adjust(self, model):
        """The image's token is never the most likely: in a prompt it would stand for another image."""
        with torch.no_grad():
            for token in self._image_tokens():
                model.get_output_embeddings().weight[token] = 0

    def _image_tokens(self):
        names = ("image_token_id", "video_token_id", "image_token_index")
        return sorted({getattr(self.config, name) for name in names if getattr(self.config, name, None) is not None})

    def _takes_patches(self):
        return hasattr(self.config.vision_config, "spatial_merge_size")

    def prompts(self, lengths):
        text = super().prompts(lengths)
        rng = np.random.default_rng(300 + self.seed)
        plain = [token for token in range(3, self.config.get_text_config().vocab_size) if token not in self._image_tokens()]
        found = []
        self.images = {}  # by the number of a prompt's tokens that are images'
        for index, (name, ids) in enumerate(text):
            ids[np.isin(ids, self._image_tokens())] = int(rng.choice(plain))
            count, image = self._image(rng, index)
            self.images[count] = image
            at = 1 + index % 3
            found.append((f"{name}_img", torch.cat([ids[:, :at], self._rows(count), ids[:, at:]], 1)))
            if index == max(len(text) - 2, 0):
                found.append((name, ids))
                found.append((f"{name}_two_img", self._with_two(rng, ids)))
        return found

    def _rows(self, count):
        return torch.full((1, count), self._image_tokens()[0] if self._takes_patches() else self.config.image_token_id)

    def _with_two(self, rng, ids):
        """A smaller image first, and the other behind text."""
        (first, one), (second, other) = self._image(rng, len(GRIDS) - 1), self._image(rng, 1)
        assert first + second not in self.images
        self.images[first + second] = {key: torch.cat([one[key], other[key]]) for key in one}
        return torch.cat([ids[:, :2], self._rows(first), ids[:, 2:4], self._rows(second), ids[:, 4:]], 1)

    def _image(self, rng, index):
        """Its number of tokens, and what the class takes."""
        vision = self.config.vision_config
        if not self._takes_patches():
            size = vision.image_size
            pixels = rng.standard_normal((1, vision.num_channels, size, size))
            side = size // vision.patch_size
            cut = getattr(self.config, "vision_feature_select_strategy", "default") == "full"
            return getattr(self.config, "mm_tokens_per_image", side * side + cut), {"pixel_values": torch.tensor(pixels)}
        merge = vision.spatial_merge_size
        rows, cols = GRIDS[index % len(GRIDS)]
        floats = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        return rows * cols, {"pixel_values": torch.tensor(rng.standard_normal((rows * cols * merge**2, floats))),
                             "image_grid_thw": torch.tensor([[1, rows * merge, cols * merge]])}

    def inputs(self, model, ids):
        types = torch.isin(ids, torch.tensor(self._image_tokens())).int()
        if not types.any():
            return {}
        image = self.images[int(types.sum())]
        kind = "mm_token_type_ids" if self._takes_patches() else "token_type_ids"
        kinds = {kind: types} if self._takes_patches() or self.config.model_type == "gemma3" else {}
        return {**image, "pixel_values": image["pixel_values"].to(next(model.parameters()).dtype), **kinds}

    def results(self, model, ids):
        found = super().results(model, ids)
        for name, value in self.inputs(model, ids).items():
            if name == "pixel_values":
                found[name] = value.double().numpy()
            elif name == "image_grid_thw":
                found[name] = value.numpy().astype(np.int32)
        return found
