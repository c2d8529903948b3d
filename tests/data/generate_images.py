"""Writes images/: what transformers' image processors (those over Pillow) make of small images, for
tests/unit/image_processor_test.cpp.

    python3 generate_images.py

Needs transformers, Pillow 12 (13 resizes some sizes in another order) and safetensors. Pixels follow a formula that the test knows too.
"""
import json
import os

import numpy
from safetensors.numpy import save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = {
    "clip_shrink": (CLIPImageProcessorPil, (37, 53), {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}),
    "clip_pad": (CLIPImageProcessorPil, (17, 10), {"size": {"shortest_edge": 12}, "crop_size": {"height": 19, "width": 21}}),
    "siglip": (SiglipImageProcessorPil, (40, 31), {"size": {"height": 16, "width": 20}}),
    "gemma3": (Gemma3ImageProcessorPil, (61, 20), {"size": {"height": 24, "width": 24}}),
    "qwen_shrink": (Qwen2VLImageProcessorPil, (61, 45), {"patch_size": 4, "min_pixels": 64, "max_pixels": 400}),
    "qwen_grow": (Qwen2VLImageProcessorPil, (5, 9), {"patch_size": 4, "min_pixels": 256, "max_pixels": 4096}),
    "qwen_round": (Qwen2VLImageProcessorPil, (12, 20), {"patch_size": 2, "merge_size": 4, "min_pixels": 64, "max_pixels": 4096,
                                                        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}),
}


def image(height, width):
    y, x, c = numpy.meshgrid(numpy.arange(height), numpy.arange(width), numpy.arange(3), indexing="ij")
    return ((x * 7 + y * 13 + c * 29 + (x * y) % 31 * 5 + (x // 9 + y // 7) % 2 * 90) % 256).astype(numpy.uint8)


def main():
    tensors, index = {}, {}
    for name, (processor_class, size, options) in CASES.items():
        processor = processor_class(**options)
        result = processor(images=[image(*size)], return_tensors="np", input_data_format="channels_last")
        pixels = numpy.ascontiguousarray(result["pixel_values"], dtype=numpy.float32)
        config = json.loads(processor.to_json_string())
        tensors[name] = pixels[0] if pixels.ndim == 4 else pixels
        grid = result["image_grid_thw"][0].tolist()[1:] if "image_grid_thw" in result else list(tensors[name].shape[1:])
        index[name] = {"height": size[0], "width": size[1], "out": grid, "config": config}
    os.makedirs(os.path.join(HERE, "images"), exist_ok=True)
    save_file(tensors, os.path.join(HERE, "images", "pixels.safetensors"))
    with open(os.path.join(HERE, "images", "cases.json"), "w", encoding="utf-8") as file:
        json.dump(index, file, indent=1, sort_keys=True)
        file.write("\n")


if __name__ == "__main__":
    main()
