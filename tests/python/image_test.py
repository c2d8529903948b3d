"""Images in prompts: transformers' greedy tokens where the goldens are, bytes against pixel values, and refusals."""

import json
import os
import shutil
import tempfile
import unittest

import numpy as np

import headrace
from headrace_test import DATA, read_safetensors

MODELS = os.path.join(DATA, "goldens", "models")
NAMES = ("llava_clip", "gemma3_vlm", "qwen2_5_vl", "qwen3_vl", "qwen3_5_vl")


def image_of(golden, case):
    pixels = golden[case + ".pixel_values"]
    if case + ".image_grid_thw" not in golden:
        return pixels[0]
    return pixels, tuple(int(x) for x in golden[case + ".image_grid_thw"][0][1:])


@unittest.skipUnless(DATA and os.path.exists(os.path.join(MODELS, "llava_clip")), "HEADRACE_TEST_DATA is not there")
class Images(unittest.TestCase):
    def refused(self, status, folder, prompt, images):
        with self.assertRaises(headrace.Error) as caught:
            headrace.Scheduler(headrace.Model.load(folder)).generate(prompt, images=images, max_tokens=1)
        self.assertEqual(caught.exception.status, status)

    def test_greedy_tokens(self):
        for name in NAMES:
            folder = os.path.join(MODELS, name)
            golden = read_safetensors(os.path.join(folder, "golden.safetensors"))
            model = headrace.Model.load(folder)
            token = model.describe()["vision"]["image_token_id"]
            scheduler = headrace.Scheduler(model)
            for case in ("p5_img", "p33_img"):
                with self.subTest(model=name, case=case):
                    ids = golden[case + ".input_ids"].tolist()
                    once = [x for i, x in enumerate(ids) if x != token or ids[i - 1] != token]
                    self.assertEqual(once.count(token), 1)
                    for prompt in (ids, once):
                        output = scheduler.generate(
                            prompt, images=[image_of(golden, case)], max_tokens=24, ignore_eos=True)
                        close = golden[case + ".greedy_margin"] < 1e-3
                        sure = int(np.argmax(close)) if close.any() else 24
                        self.assertEqual(output.tokens[:sure], golden[case + ".greedy"].tolist()[:sure])

    def test_sessions_and_prompt_logprobs(self):
        for name in NAMES:
            with self.subTest(model=name):
                golden = read_safetensors(os.path.join(MODELS, name, "golden.safetensors"))
                model = headrace.Model.load(os.path.join(MODELS, name))
                cache = headrace.KVCache(model, kv_dtype="f32")
                scheduler = headrace.Scheduler(model, cache)
                ids = golden["p33_img.input_ids"].tolist()
                session = headrace.Session(model, cache)
                whole = scheduler.generate(ids, images=[image_of(golden, "p33_img")], max_tokens=8, ignore_eos=True)
                said = scheduler.generate(ids, images=[image_of(golden, "p33_img")], max_tokens=4, ignore_eos=True,
                                          session=session)
                self.assertEqual(said.tokens, whole.tokens[:4])
                self.assertEqual(session.tokens, ids + said.tokens)
                more = scheduler.generate([], max_tokens=4, ignore_eos=True, session=session)
                self.assertEqual(more.tokens, whole.tokens[4:])
                scored = scheduler.generate(ids, images=[image_of(golden, "p33_img")], max_tokens=1, prompt_logprobs=0)
                logits = golden["p33_img.logits"].astype(np.float64)
                top = logits.max(axis=1, keepdims=True)
                expected = (logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))[
                    np.arange(len(ids) - 1), ids[1:]]
                self.assertLess(np.abs(np.array(scored.prompt_logprobs[1:]) - expected).max(), 2e-3)

    def test_bytes_are_processed_as_the_files_say(self):
        with tempfile.TemporaryDirectory() as folder:
            for file in ("config.json", "model.safetensors", "tokenizer.json"):
                shutil.copy(os.path.join(MODELS, "llava_clip", file), folder)
            rgb = (np.arange(40 * 48 * 3) * 7 % 256).astype(np.uint8).reshape(40, 48, 3)
            self.refused("HEADRACE_NOT_FOUND", folder, [9, 6, 10], [rgb])
            with open(os.path.join(folder, "preprocessor_config.json"), "w") as file:
                json.dump({"image_processor_type": "CLIPImageProcessor", "do_resize": False,
                           "crop_size": {"height": 32, "width": 32}}, file)
            scheduler = headrace.Scheduler(headrace.Model.load(folder))
            mean = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
            deviation = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)
            cut = (rgb[4:36, 8:40] / 255.0).astype(np.float32)
            pixels = np.moveaxis((cut - mean) / deviation, -1, 0)
            outputs = [scheduler.generate([9, 6, 10], images=[image], max_tokens=8, logprobs=3, ignore_eos=True)
                       for image in (rgb, pixels)]
            self.assertEqual(outputs[0].tokens, outputs[1].tokens)
            self.assertEqual(outputs[0].logprobs, outputs[1].logprobs)

    def test_what_does_not_fit_is_refused(self):
        scheduler = headrace.Scheduler(headrace.Model.load(os.path.join(MODELS, "llava_clip")))
        image = np.zeros((3, 32, 32), dtype=np.float32)
        with self.assertRaises(TypeError):
            scheduler.generate([9, 6], images=["picture"], max_tokens=1)
        with self.assertRaises(TypeError):
            scheduler.generate([9, 6], images=[image[0]], max_tokens=1)
        for images, prompt in (([image[:, :, :16]], [9, 6]), ([image], [9, 10]), ([image, image], [9, 6])):
            self.refused("HEADRACE_INVALID_ARGUMENT", os.path.join(MODELS, "llava_clip"), prompt, images)
        self.refused("HEADRACE_UNSUPPORTED", os.path.join(MODELS, "llama"), [9, 6], [image])


if __name__ == "__main__":
    unittest.main()
