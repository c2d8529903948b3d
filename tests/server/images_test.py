"""Images in messages: PNG and JPEG as clients send them, against the same bytes given to the library."""

import base64
import json
import os
import shutil
import struct
import unittest
import zlib

from server_process import ServerTest

DATA = os.environ.get("HEADRACE_TEST_DATA", "")
LLAVA = os.path.join(DATA, "goldens", "models", "llava_clip")
SIZE = 32
# 32 x 32 pixels of the color (200, 30, 60), which Pillow reads back as (200, 30, 59).
JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQERMUFRUVDA8XGBYU"
    "GBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBT/wAARCAAgACAD"
    "ASIAAhEBAxEB/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKB"
    "kaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZ"
    "mqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/8QAHwEAAwEBAQEBAQEBAQAAAAAAAAECAwQF"
    "BgcICQoL/8QAtREAAgECBAQDBAcFBAQAAQJ3AAECAxEEBSExBhJBUQdhcRMiMoEIFEKRobHBCSMzUvAVYnLRChYkNOEl8RcYGRomJygpKjU2Nzg5"
    "OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6goOEhYaHiImKkpOUlZaXmJmaoqOkpaanqKmqsrO0tba3uLm6wsPExcbHyMnK0tPU1dbX"
    "2Nna4uPk5ebn6Onq8vP09fb3+Pn6/9oADAMBAAIRAxEAPwDwqiiivmj+3QooooAKKKKACiiigD//2Q==")
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}")


def png(pixel, channels=3):
    """SIZE x SIZE pixels, pixel(x, y) giving the bytes of one."""
    rows = b"".join(b"\0" + b"".join(bytes(pixel(x, y)) for x in range(SIZE)) for y in range(SIZE))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) +
                            chunk(b"IEND", b"")).decode()


def white(width, height):
    rows = (b"\0" + b"\xff" * (width * 3)) * height
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return "data:image/png;base64," + base64.b64encode(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")).decode()


@unittest.skipUnless(DATA and os.path.exists(LLAVA), "HEADRACE_TEST_DATA is not there")
class Images(ServerTest):
    @classmethod
    def write_model(cls, folder):
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            shutil.copy(os.path.join(LLAVA, name), folder)
        files = {"tokenizer_config.json": {"chat_template": CHAT_TEMPLATE},
                 "preprocessor_config.json": {"image_processor_type": "CLIPImageProcessor", "do_resize": False,
                                              "crop_size": {"height": SIZE, "width": SIZE}}}
        for name, content in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                json.dump(content, file)
        return folder

    def chat(self, *urls, status=200):
        parts = [{"type": "text", "text": "see"},
                 *({"type": "image_url", "image_url": {"url": url, "detail": "high"}} for url in urls)]
        got, _, out = self.server.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 8, "ignore_eos": True,
            "logprobs": True})
        self.assertEqual(got, status, out)
        if got != 200:
            return out
        (choice,) = out["choices"]
        return choice["message"]["content"], [token["logprob"] for token in choice["logprobs"]["content"]]

    def test_the_library_says_the_same_of_the_same_bytes(self):
        import headrace
        import numpy as np
        pixel = lambda x, y: (x * 8, y * 8, (x * y) % 256)
        rgb = np.array([[pixel(x, y) for x in range(SIZE)] for y in range(SIZE)], np.uint8)
        model = headrace.Model.load(self.folder, threads=1)
        tokens = model.tokenizer.encode("see<image>", add_special=False)
        expected = headrace.Scheduler(model).generate(tokens, images=[rgb], max_tokens=8, ignore_eos=True)
        said = self.chat("data:image/png;base64," + png(pixel))
        self.assertEqual(said[0], expected.text)
        # Alpha is dropped, and another image is another answer.
        self.assertEqual(self.chat("data:image/png;base64," + png(lambda x, y: (*pixel(x, y), x), 4)), said)
        self.assertNotEqual(self.chat("data:image/png;base64," + png(lambda x, y: (255 - x, 0, y))), said)

    def test_jpeg(self):
        self.assertEqual(self.chat("data:image/jpeg;base64," + JPEG),
                         self.chat("data:image/png;base64," + png(lambda x, y: (200, 30, 59))))

    def test_the_other_apis(self):
        draw = {"temperature": 0, "ignore_eos": True}
        said, _ = self.chat("data:image/jpeg;base64," + JPEG)
        source = {"type": "base64", "media_type": "image/jpeg", "data": JPEG}
        out = self.server.post("/v1/messages", {"max_tokens": 8, **draw, "messages": [{"role": "user", "content": [
            {"type": "text", "text": "see"}, {"type": "image", "source": source}]}]})
        self.assertEqual(out["content"][0]["text"], said)
        out = self.server.post("/v1/responses", {"max_output_tokens": 8, **draw, "input": [{"role": "user", "content": [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": "data:image/jpeg;base64," + JPEG}]}]})
        self.assertEqual(out["output"][0]["content"][0]["text"], said)

    def test_a_conversation_kept_by_the_server(self):
        draw = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": True}
        picture = lambda draw_pixel: {"type": "image_url", "image_url": {"url": "data:image/png;base64," + png(draw_pixel)}}
        turns = [[{"type": "text", "text": "see"}, picture(lambda x, y: (x * 8, y * 8, 0))], "and then",
                 [picture(lambda x, y: (0, x * 8, y * 8)), {"type": "text", "text": "more"}]]
        session = self.server.post("/v1/sessions", {})["id"]
        whole = []
        for content in turns:
            turn = {"role": "user", "content": content}
            whole.append(turn)
            kept = self.server.post("/v1/chat/completions", {"messages": [turn], "session": session, **draw})
            at_once = self.server.post("/v1/chat/completions", {"messages": whole, "cache_salt": self.id(), **draw})
            self.assertEqual(kept["choices"], at_once["choices"])
            self.assertEqual(kept["usage"]["prompt_tokens"], at_once["usage"]["prompt_tokens"])
            whole.append({"role": "assistant", "content": kept["choices"][0]["message"]["content"]})
        self.assertGreater(kept["usage"]["prompt_tokens_details"]["cached_tokens"], 32)
        # What a request that fails brought counts for nothing; what succeeded does, in forks too.
        fork = self.server.ask("POST", f"/v1/sessions/{session}/fork")[2]["id"]
        large = lambda width: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": white(width, 8000)}}]}]}
        for name in (session, fork):
            status, _, out = self.server.ask("POST", "/v1/chat/completions", {**large(8000), "session": name, **draw})
            self.assertEqual(status, 400, out)
            self.assertIn("64 million pixels", out["error"]["message"])

    def test_pixels_of_a_request_have_a_bound_together(self):
        error = self.chat(white(8000, 8001), status=400)["error"]
        self.assertIn("64 million pixels", error["message"])
        # The second one exceeds what the first left: the rest is not decoded.
        error = self.chat(white(6000, 6000), white(6000, 6000), status=400)["error"]
        self.assertIn("64 million pixels", error["message"])
        self.assertEqual(error["param"], "messages[0].content[2].image_url.url")

    def test_what_is_refused(self):
        for url, says in (("https://example.org/a.png", "fetches nothing"), ("data:image/png;base64,A", "not base64"),
                          ("data:image/gif;base64,R0lGODlh", "neither PNG nor JPEG"),
                          ("data:image/png;base64,iVBORw0KGgo=", "no PNG"),
                          ("data:image/jpeg;base64," + JPEG[:200], "no JPEG")):
            error = self.chat(url, status=400)["error"]
            self.assertIn(says, error["message"])
            self.assertEqual(error["param"], "messages[0].content[1].image_url.url")


if __name__ == "__main__":
    unittest.main()
