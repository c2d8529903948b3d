"""Sessions, adapters, tokens, embeddings and reranking."""

import base64
import os
import struct
import unittest

import tiny_adapter
import tiny_encoder
from server_process import ServerTest

DRAW = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}


class Sessions(ServerTest):
    def new(self):
        return self.server.post("/v1/sessions", {})["id"]

    def tokens(self, session):
        return self.server.get("/v1/sessions/" + session)["tokens"]

    def test_a_conversation(self):
        session = self.new()
        first = [{"role": "user", "content": "hello"}]
        one = self.server.post("/v1/chat/completions", {"messages": first, "session": session, **DRAW})
        self.assertEqual(self.tokens(session), one["usage"]["prompt_tokens"] + 6)
        said = one["choices"][0]["message"]
        more = [{"role": "user", "content": "more"}]
        two = self.server.post("/v1/chat/completions", {"messages": more, "session": session, **DRAW})
        whole = self.server.post("/v1/chat/completions",
                                 {"messages": [*first, {"role": "assistant", "content": said["content"]}, *more], **DRAW})
        self.assertEqual(two["choices"][0]["message"], whole["choices"][0]["message"])
        self.assertGreater(two["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_text_forks_and_rewinds(self):
        session = self.new()
        complete = lambda id, prompt: self.server.post(
            "/v1/completions", {"prompt": prompt, "session": id, **DRAW})["choices"][0]["text"]
        complete(session, "hello")
        length = self.tokens(session)
        fork = self.server.ask("POST", f"/v1/sessions/{session}/fork")[2]["id"]
        said = complete(session, "a")
        self.assertEqual(complete(fork, "a"), said)
        self.assertEqual(self.server.post(f"/v1/sessions/{session}/rewind", {"tokens": length})["tokens"], length)
        self.assertEqual(complete(session, "a"), said)

    def test_what_fails_leaves_no_trace(self):
        session = self.new()
        body = {"messages": [{"role": "user", "content": "hello"}], "session": session, **DRAW}
        self.assert_refused("/v1/chat/completions", {**body, "n": 2}, 400, "n")
        self.assert_refused("/v1/chat/completions", {**body, "max_tokens": 4000, "deadline_ms": 20}, 504)
        self.assertEqual(self.tokens(session), 0)
        self.server.post("/v1/chat/completions", body)
        self.assertEqual(self.server.ask("DELETE", "/v1/sessions/" + session)[2]["deleted"], True)
        self.assert_refused("/v1/chat/completions", body, 404, "session")


class Tokens(ServerTest):
    def test_there_and_back(self):
        out = self.server.post("/tokenize", {"prompt": "hello"})
        self.assertEqual((out["count"], len(out["tokens"])), (6, 6))
        self.assertEqual(self.server.post("/detokenize", {"tokens": out["tokens"]}), {"prompt": "<s>hello"})
        plain = self.server.post("/tokenize", {"prompt": "hello", "add_special_tokens": False})
        self.assertEqual(plain["tokens"], out["tokens"][1:])
        chat = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "hello"}]})
        self.assertEqual(chat["count"], 9)
        self.assert_refused("/tokenize", {}, 400, "prompt")
        self.assert_refused("/detokenize", {"tokens": [1, 2 ** 31]}, 400, "tokens[1]")
        self.assert_refused("/detokenize", {"tokens": [100000]}, 400, "tokens[0]")


class Adapters(ServerTest):
    @classmethod
    def write_model(cls, folder):
        model, adapters = (os.path.join(folder, name) for name in ("model", "adapters"))
        os.mkdir(model)
        os.makedirs(os.path.join(adapters, "b"))
        super().write_model(model)
        tiny_adapter.write(os.path.join(adapters, "b"))
        cls.arguments = ("--adapter-dir", adapters)
        return model

    def test_loaded_and_unloaded(self):
        def text(model):
            body = {"model": model, "prompt": "hello", "logprobs": 0, **DRAW}
            return self.server.post("/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"]

        base = text("tiny")
        self.assert_refused("/v1/completions", {"model": "mine", "prompt": "a"}, 404, "model")
        load = lambda **fields: {"lora_name": "mine", "lora_path": "b", **fields}
        self.server.post("/v1/load_lora_adapter", load())
        self.assertEqual([m["id"] for m in self.server.get("/v1/models")["data"]], ["tiny", "mine"])
        self.assertNotEqual(text("mine"), base)
        self.assertEqual(text("tiny"), base)
        self.assert_refused("/v1/load_lora_adapter", load(), 409, "lora_name")
        for path in ("../adapters/b", "/tmp", "..", "b/."):
            self.assert_refused("/v1/load_lora_adapter", load(lora_name="x", lora_path=path), 400, "lora_path")
        self.server.post("/v1/unload_lora_adapter", {"lora_name": "mine"})
        self.assert_refused("/v1/unload_lora_adapter", {"lora_name": "mine"}, 404, "lora_name")
        self.assert_refused("/v1/embeddings", {"input": "a"}, 400, "model", "no embeddings")


class Embeddings(ServerTest):
    @classmethod
    def write_model(cls, folder):
        return tiny_encoder.write(folder, pooling="cls_token")

    def test_vectors(self):
        out = self.server.post("/v1/embeddings", {"input": ["hello", "two words"]})
        self.assertEqual([(e["object"], e["index"], len(e["embedding"])) for e in out["data"]],
                         [("embedding", i, tiny_encoder.SIZE) for i in (0, 1)])
        self.assertEqual(out["usage"]["prompt_tokens"], 16)
        coded = self.server.post("/v1/embeddings", {"input": "two words", "encoding_format": "base64"})
        values = struct.unpack(f"<{tiny_encoder.SIZE}f", base64.b64decode(coded["data"][0]["embedding"]))
        for a, b in zip(values, out["data"][1]["embedding"], strict=True):
            self.assertAlmostEqual(a, b, places=6)
        tokens = self.server.post("/tokenize", {"prompt": "hello"})["tokens"]
        again = self.server.post("/v1/embeddings", {"input": [tokens], "dimensions": tiny_encoder.SIZE})
        self.assertEqual(again["data"][0], out["data"][0])

    def test_what_is_refused(self):
        self.assert_refused("/v1/embeddings", {"input": ""}, 400, "input")
        self.assert_refused("/v1/embeddings", {"input": ["a", ""]}, 400, "input[1]")
        self.assert_refused("/v1/embeddings", {"input": "a", "dimensions": 2}, 400, "dimensions")
        self.assert_refused("/v1/embeddings", {"input": "a" * 100}, 400, "input")
        self.assert_refused("/v1/embeddings", {"input": ["a"] * 40 + ["a" * 100]}, 400, "input[40]")
        self.assert_refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 400, "model",
                            "generates nothing")

    def test_documents_are_ranked_by_their_vectors(self):
        documents = ["two words", "hello", {"text": "else"}]
        out = self.server.post("/v1/rerank", {"query": "hello", "documents": documents, "return_documents": True})
        best = out["results"][0]
        self.assertEqual((best["index"], best["document"]["text"]), (1, "hello"))
        self.assertAlmostEqual(best["relevance_score"], 1, places=5)
        scores = [result["relevance_score"] for result in out["results"]]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(len(self.server.post("/v1/rerank", {"query": "hello", "documents": documents, "top_n": 1})
                             ["results"]), 1)
        self.assert_refused("/v1/rerank", {"query": "hello", "documents": ["a"] * 20 + ["a" * 100]}, 400, "documents[20]")
        self.assert_refused("/v1/rerank", {"query": "a" * 100, "documents": documents}, 400, "query")


class Ranking(ServerTest):
    @classmethod
    def write_model(cls, folder):
        return tiny_encoder.write(folder, labels=1)

    def test_a_classifier_reads_pairs(self):
        out = self.server.post("/v1/rerank", {"query": "hello", "documents": ["one", "two", "three"]})
        self.assertEqual(sorted(result["index"] for result in out["results"]), [0, 1, 2])
        for result in out["results"]:
            self.assertTrue(0 < result["relevance_score"] < 1)
        alone = self.server.post("/v1/rerank", {"query": "hello", "documents": ["three"]})["results"][0]
        (same,) = (r for r in out["results"] if r["index"] == 2)
        self.assertEqual(alone["relevance_score"], same["relevance_score"])
        other = self.server.post("/v1/rerank", {"query": "jello", "documents": ["three"]})["results"][0]
        self.assertNotEqual(alone["relevance_score"], other["relevance_score"])


if __name__ == "__main__":
    unittest.main()
