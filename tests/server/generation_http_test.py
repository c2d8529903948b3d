"""What /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages answer, byte by byte where it matters."""

import unittest

import tiny_text_model
from server_process import ServerTest

HELLO = [{"role": "user", "content": "hello"}]
# Greedy, and as long as it was asked to be.
DRAW = {"temperature": 0, "ignore_eos": True}


class Chat(ServerTest):
    def chat(self, **fields):
        return self.server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 12, **DRAW, **fields})

    def text(self, **fields):
        return self.chat(**fields)["choices"][0]["message"]["content"]

    def stream(self, **fields):
        events = self.server.events("/v1/chat/completions",
                                    {"messages": HELLO, "max_tokens": 12, "stream": True, **DRAW, **fields})
        self.assertEqual(events[-1], (None, "[DONE]"))
        return [data for _, data in events[:-1]]

    def test_an_answer(self):
        out = self.chat()
        self.assertEqual((out["object"], out["model"]), ("chat.completion", "tiny"))
        (choice,) = out["choices"]
        self.assertEqual((choice["index"], choice["finish_reason"], choice["logprobs"]), (0, "length", None))
        self.assertEqual(choice["message"]["role"], "assistant")
        usage = out["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]), (9, 12, 21))
        self.assertEqual(out["choices"], self.chat(model="tiny")["choices"])

    def test_a_stream_is_the_answer_in_pieces(self):
        whole = self.text()
        chunks = self.stream()
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in chunks), whole)
        self.assertEqual([c["choices"][0]["finish_reason"] for c in chunks], [None] * (len(chunks) - 1) + ["length"])
        self.assertEqual(len({c["id"] for c in chunks}), 1)
        self.assertFalse(any("usage" in c for c in chunks))

    def test_usage_comes_last_and_alone(self):
        chunks = self.stream(stream_options={"include_usage": True})
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 12)
        self.assertEqual({repr(c["usage"]) for c in chunks[:-1]}, {"None"})

    def test_a_long_prompt_says_how_far_it_is(self):
        prompt = {"messages": [{"role": "user", "content": "so many letters " * 100}], "cache_salt": self.id()}
        plain = self.stream(**prompt, max_tokens=3, return_progress=False)
        self.assertFalse(any("prompt_progress" in chunk for chunk in plain))
        prompt["cache_salt"] += "2"
        chunks = self.stream(**prompt, max_tokens=3, return_progress=True, stream_options={"include_usage": True})
        told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
        self.assertGreater(len(told), 2)  # more than one step of 512 rows
        total = chunks[-1]["usage"]["prompt_tokens"]
        self.assertEqual({(one["total"], one["cache"]) for one in told}, {(total, 0)})
        self.assertEqual([one["processed"] for one in told], sorted({one["processed"] for one in told}))
        self.assertEqual(told[-1]["processed"], total)
        # Clients that know nothing of it find a choice that adds nothing, and the same text as without.
        text = lambda chunks: "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
        self.assertEqual(text(chunks), text(plain))
        # What is cached counts as computed.
        again = self.stream(**prompt, max_tokens=3, return_progress=True)
        (last,) = [chunk["prompt_progress"] for chunk in again if "prompt_progress" in chunk]
        self.assertGreater(last["cache"], 512)
        self.assertEqual(last["processed"], total)
        events = self.server.events("/v1/completions", {"prompt": "x" * 600, "stream": True, "return_progress": True, **DRAW})
        self.assertEqual([data["choices"][0]["text"] for _, data in events[:1]], [""])
        self.assertIn("prompt_progress", events[0][1])
        self.assert_refused("/v1/chat/completions", {**prompt, "return_progress": True}, 400, "return_progress")

    def test_usage_says_what_was_cached_and_why_no_more(self):
        self.server.ask("DELETE", "/v1/cache")
        messages = [{"role": "user", "content": "a prompt that is longer than two blocks of sixteen"}]
        first, second = (self.chat(messages=messages)["usage"]["prompt_tokens_details"] for _ in range(2))
        self.assertEqual(first, {"cached_tokens": 0, "reuse_miss": "unseen"})
        self.assertGreater(second["cached_tokens"], 16)

    def test_samples(self):
        out = self.chat(n=3, temperature=1.5, seed=7)
        texts = [choice["message"]["content"] for choice in out["choices"]]
        self.assertEqual([choice["index"] for choice in out["choices"]], [0, 1, 2])
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(out["usage"]["completion_tokens"], 36)
        self.assertEqual(out["usage"]["prompt_tokens"], 9)
        again = {0: "", 1: "", 2: ""}
        for chunk in self.stream(n=3, temperature=1.5, seed=7):
            for choice in chunk["choices"]:
                again[choice["index"]] += choice["delta"].get("content", "")
        self.assertEqual(list(again.values()), texts)

    def test_stop_strings_and_lengths(self):
        whole = self.text()
        out = self.chat(stop=whole[4:6])["choices"][0]
        self.assertEqual((out["message"]["content"], out["finish_reason"]), (whole[:whole.index(whole[4:6])], "stop"))
        self.assertEqual(self.text(stop=["never said"]), whole)
        self.assertEqual(self.text(max_completion_tokens=5), whole[:5])

    def test_logprobs(self):
        out = self.chat(logprobs=True, top_logprobs=2)["choices"][0]
        tokens = out["logprobs"]["content"]
        said = b"".join(bytes(token["bytes"]) for token in tokens)
        self.assertEqual(said.decode(errors="replace"), out["message"]["content"])
        for token in tokens:
            self.assertEqual(len(token["top_logprobs"]), 2)
            self.assertEqual(token["top_logprobs"][0]["token"], token["token"])  # greedy
            self.assertEqual(bytes(token["bytes"]).decode(errors="replace"), token["token"])
            self.assertLess(token["logprob"], 0)
        chunks = self.stream(logprobs=True)
        streamed = [token for c in chunks for token in ((c["choices"][0]["logprobs"] or {}).get("content") or [])]
        self.assertEqual([token["token"] for token in streamed], [token["token"] for token in tokens])

    def test_bias(self):
        token = self.server.post("/tokenize", {"prompt": "DEF", "add_special_tokens": False})["tokens"]
        self.assertEqual(len(token), 3)  # letters: "DEF" is a token that text is never split into
        x = self.server.post("/tokenize", {"prompt": "x", "add_special_tokens": False})["tokens"][0]
        self.assertEqual(self.text(logit_bias={str(x): 100}, max_tokens=4), "xxxx")

    def test_parts_and_roles(self):
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        self.assertEqual(self.text(messages=[{"role": "user", "content": parts}]),
                         self.text(messages=[{"role": "user", "content": "hel\nlo"}]))
        for role in ("system", "developer"):
            self.assertEqual(self.text(messages=[{"role": role, "content": "be brief"}, *HELLO]),
                             self.text(messages=[{"role": "system", "content": "be brief"}, *HELLO]))

    def test_what_shapes_the_draw(self):
        greedy, hot = self.text(), {"temperature": 2.0, "seed": 7}
        self.assertNotEqual(self.text(**hot), greedy)
        # Each of these leaves the likeliest token alone.
        for fields in ({"min_p": 1.0}, {"top_k": 1}, {"top_p": 1e-6}):
            with self.subTest(**fields):
                self.assertEqual(self.text(**hot, **fields), greedy)
        self.assertNotEqual(self.text(**hot, typical_p=0.05), self.text(**hot))
        for fields in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 3.0}):
            with self.subTest(**fields):
                text = self.text(**fields, max_tokens=32)
                self.assertGreater(len(set(text)), len(set(self.text(max_tokens=32))))
        first = tiny_text_model.token(greedy[0])
        self.assertEqual(self.text(stop_token_ids=[first]), "")
        late = self.chat(stop_token_ids=[first], min_tokens=3)
        self.assertGreaterEqual(late["usage"]["completion_tokens"], 3)

    def test_harmless_fields(self):
        whole = self.text()
        self.assertEqual(self.text(user="me", metadata={"a": "b"}, store=False, tools=[], n=None, stop=None,
                                   response_format={"type": "text"}, service_tier="auto"), whole)

    def test_a_deadline(self):
        error = self.assert_refused("/v1/chat/completions", {"messages": HELLO, "deadline_ms": 20, **DRAW}, 504)
        self.assertEqual(error["code"], "deadline_exceeded")

    def test_what_is_refused(self):
        path = "/v1/chat/completions"

        def refused(field, status=400, says="", **fields):
            return self.assert_refused(path, {"messages": HELLO, **fields}, status, field, says)

        refused("temperature", temperature="hot", says="must be number or null, not string")
        refused("temperature", temperature=3, says="at most 2")
        refused("messages", messages=[])
        refused("messages[0].role", messages=[{"role": "tool", "content": ""}], says="tool calls")
        refused("messages[0].content[0].text", messages=[{"role": "user", "content": [{"type": "text"}]}])
        refused("messages[1].tool_calls", says="not supported",
                messages=[*HELLO, {"role": "assistant", "tool_calls": [{"id": "1"}]}])
        refused("messages[0].content[0]", says="reads no images", messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}])
        refused("max_token", max_token=1, says="not known")
        refused("n", n=0)
        refused("stop[1]", stop=["a", ""])
        refused("logit_bias.x", logit_bias={"x": 1})
        refused("top_logprobs", top_logprobs=2)
        refused("chat_template_kwargs.messages", chat_template_kwargs={"messages": []})
        refused("stream_options", stream_options={"include_usage": True})
        refused("model", 404, model="gpt-9")
        self.assertEqual(refused("tools", tools=[{"type": "function"}])["code"], "unsupported_parameter")
        refused("response_format", response_format={"type": "json_object"}, says="structured output")
        refused("store", store=True)
        self.assert_refused(path, {}, 400, "messages", "is required")
        self.assert_refused(path, b"{", 415)
        for body in (b"{", b"[]", b"", b"\xff", b"[" * 100000, b'{"messages": "\xff"}'):
            status, _, data = self.server.ask("POST", path, body, {"Content-Type": "application/json"})
            self.assertEqual(status, 400, data)
        self.assertEqual(self.assert_refused(path, {"messages": [{"role": "user", "content": "a" * 9000}]}, 400, "messages")
                         ["code"], "context_length_exceeded")


class Completions(ServerTest):
    def complete(self, **fields):
        return self.server.post("/v1/completions", {"prompt": "hello", "max_tokens": 8, **DRAW, **fields})

    def test_prompts(self):
        out = self.complete()
        self.assertEqual((out["object"], out["choices"][0]["finish_reason"]), ("text_completion", "length"))
        tokens = self.server.post("/tokenize", {"prompt": "hello"})["tokens"]
        self.assertEqual(self.complete(prompt=tokens)["choices"], out["choices"])
        several = self.complete(prompt=["hello", "other"], n=2, temperature=1, seed=3)
        self.assertEqual([choice["index"] for choice in several["choices"]], [0, 1, 2, 3])
        alone = self.complete(prompt="other", n=2, temperature=1, seed=3)
        self.assertEqual([c["text"] for c in several["choices"][2:]], [c["text"] for c in alone["choices"]])
        self.assertEqual(several["usage"]["completion_tokens"], 32)
        self.assertEqual(self.complete(prompt=[tokens, tokens])["choices"][1]["text"], out["choices"][0]["text"])
        usage = self.server.post("/v1/completions", {"prompt": "a", **DRAW})["usage"]
        self.assertEqual(usage["completion_tokens"], 16)

    def test_a_stream(self):
        events = self.server.events("/v1/completions", {"prompt": ["hello", "other"], "max_tokens": 8, "stream": True,
                                                        "stream_options": {"include_usage": True}, **DRAW})
        self.assertEqual(events.pop(), (None, "[DONE]"))
        chunks = [data for _, data in events]
        self.assertEqual((chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]), ([], 16))
        texts = ["", ""]
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
        whole = self.complete(prompt=["hello", "other"])
        self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])

    def test_logprobs(self):
        choice = self.complete(logprobs=2)["choices"][0]
        self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])
        self.assertEqual(choice["logprobs"]["text_offset"], list(range(8)))
        for token, logprob, top in zip(*(choice["logprobs"][k] for k in ("tokens", "token_logprobs", "top_logprobs"))):
            self.assertEqual((len(top), top[token]), (2, logprob))

    def test_what_is_refused(self):
        def refused(field, says="", **fields):
            self.assert_refused("/v1/completions", {"prompt": "a", **fields}, 400, field, says)

        refused("echo", echo=True, says="not supported")
        refused("suffix", suffix="b")
        refused("best_of", best_of=2)
        refused("prompt[1]", prompt=[1, -1])
        refused("prompt[0][0]", prompt=[["a"]])
        refused("prompt[0]", prompt=[100000])
        refused("prompt[1][2]", prompt=[[5], [5, 5, 100000]])
        refused("stop_token_ids", stop_token_ids=[100000])


class Responses(ServerTest):
    def respond(self, **fields):
        return self.server.post("/v1/responses", {"input": "hello", "max_output_tokens": 8, **DRAW, **fields})

    def test_an_answer(self):
        out = self.respond(metadata={"a": "b"})
        self.assertEqual((out["object"], out["status"], out["incomplete_details"], out["metadata"], out["store"]),
                         ("response", "incomplete", {"reason": "max_output_tokens"}, {"a": "b"}, False))
        chat = self.server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 8, **DRAW})
        text = chat["choices"][0]["message"]["content"]
        self.assertEqual(out["output"][0]["content"][0]["text"], text)
        self.assertEqual(out["usage"]["output_tokens"], 8)
        items = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
        self.assertEqual(self.respond(input=items)["output"][0]["content"], out["output"][0]["content"])

    def test_events_in_order(self):
        events = self.server.events("/v1/responses", {"input": "hello", "max_output_tokens": 8, "stream": True, **DRAW})
        names = [name for name, _ in events]
        deltas = names.count("response.output_text.delta")
        self.assertEqual(names, [
            "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
            *["response.output_text.delta"] * deltas, "response.output_text.done", "response.content_part.done",
            "response.output_item.done", "response.incomplete"])
        self.assertEqual([data["sequence_number"] for _, data in events], list(range(len(events))))
        self.assertEqual([data["type"] for _, data in events], names)
        text = "".join(data["delta"] for name, data in events if name.endswith("delta"))
        self.assertEqual(events[-1][1]["response"]["output"][0]["content"][0]["text"], text)

    def test_what_is_refused(self):
        for field, value in (("store", True), ("previous_response_id", "resp_1"), ("background", True),
                             ("tools", [{"type": "web_search"}]), ("truncation", "auto"), ("reasoning", {"effort": "low"}),
                             ("text", {"format": {"type": "json_object"}})):
            self.assert_refused("/v1/responses", {"input": "a", field: value}, 400, field, "not supported")


class Messages(ServerTest):
    def message(self, **fields):
        return self.server.post("/v1/messages", {"messages": HELLO, "max_tokens": 8, **DRAW, **fields})

    def test_an_answer(self):
        out = self.message()
        self.assertEqual((out["type"], out["role"], out["stop_reason"], out["stop_sequence"]),
                         ("message", "assistant", "max_tokens", None))
        usage = out["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], 9)
        text = out["content"][0]["text"]
        stopped = self.message(stop_sequences=["never said", text[3:5]])
        self.assertEqual((stopped["stop_reason"], stopped["stop_sequence"], stopped["content"][0]["text"]),
                         ("stop_sequence", text[3:5], text[:text.index(text[3:5])]))
        count = self.server.post("/v1/messages/count_tokens", {"messages": HELLO})
        self.assertEqual(count, {"input_tokens": 9})

    def test_events_in_order(self):
        events = self.server.events("/v1/messages", {"messages": HELLO, "max_tokens": 8, "stream": True, **DRAW})
        names = [name for name, _ in events]
        self.assertEqual(names, ["message_start", "content_block_start",
                                 *["content_block_delta"] * names.count("content_block_delta"),
                                 "content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(events[0][1]["message"]["usage"]["input_tokens"], 9)
        self.assertEqual(events[-2][1]["delta"]["stop_reason"], "max_tokens")
        self.assertEqual("".join(data["delta"]["text"] for name, data in events if name == "content_block_delta"),
                         self.message()["content"][0]["text"])

    def test_errors_have_their_own_shape(self):
        for body, says in (({"messages": HELLO}, "max_tokens: is required"),
                           ({"messages": HELLO, "max_tokens": 1, "tools": [{"name": "a"}]}, "tools: is not supported"),
                           ({"messages": HELLO, "max_tokens": 1, "temperature": 2}, "temperature: must be at most 1"),
                           ({"messages": [*HELLO, {"role": "assistant", "content": "a"}], "max_tokens": 1},
                            "messages[1].role: the last message is the assistant's")):
            status, _, data = self.server.ask("POST", "/v1/messages", body)
            self.assertEqual((status, data["type"], data["error"]["type"]), (400, "error", "invalid_request_error"))
            self.assertIn(says, data["error"]["message"])


if __name__ == "__main__":
    unittest.main()
