"""The official Python clients of OpenAI and Anthropic."""

import unittest

from client_packages import needs_packages
from server_process import ServerTest

HELLO = [{"role": "user", "content": "hello"}]
MORE = {"ignore_eos": True, "temperature": 0}  # what a client does not know goes into extra_body


@needs_packages
class OpenAi(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import openai
        cls.openai = openai
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        cls.addClassCleanup(cls.client.close)

    def chat(self, **arguments):
        return self.client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=10, extra_body=MORE, **arguments)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")
        with self.assertRaises(self.openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_chat(self):
        whole = self.chat(logprobs=True, top_logprobs=3)
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(whole.usage.completion_tokens, 10)
        self.assertEqual(len(whole.choices[0].logprobs.content[0].top_logprobs), 3)
        text, usage = "", None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            self.assertIsNone(usage)
            usage = chunk.usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, 10)
        answered = whole.choices[0].message.model_dump()  # with all its nulls
        self.client.chat.completions.create(model="tiny", messages=[*HELLO, answered, *HELLO], max_tokens=1)

    def test_the_streaming_helper(self):
        text = self.chat().choices[0].message.content
        # The helper demands an end that is not that of the length.
        with self.client.chat.completions.stream(model="tiny", messages=HELLO, stop=text[5], extra_body=MORE) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, text[:text.index(text[5])])

    def test_completions(self):
        arguments = dict(model="tiny", prompt="hello", max_tokens=10, extra_body=MORE)
        whole = self.client.completions.create(logprobs=1, **arguments)
        self.assertEqual("".join(whole.choices[0].logprobs.tokens), whole.choices[0].text)
        pieces = self.client.completions.create(stream=True, **arguments)
        self.assertEqual("".join(chunk.choices[0].text for chunk in pieces), whole.choices[0].text)

    def test_responses(self):
        arguments = dict(model="tiny", input="hello", max_output_tokens=10, extra_body=MORE)
        whole = self.client.responses.create(**arguments)
        self.assertEqual(whole.status, "incomplete")
        text, last = "", None
        for event in self.client.responses.create(stream=True, **arguments):
            last = event
            if event.type == "response.output_text.delta":
                text += event.delta
        self.assertEqual((text, last.response.output_text), (whole.output_text, whole.output_text))
        stop = {**arguments, "extra_body": {**MORE, "stop": text[5]}}
        with self.client.responses.stream(**stop) as stream:
            final = stream.get_final_response()
        self.assertEqual((final.status, final.output_text), ("completed", text[:text.index(text[5])]))
        again = self.client.responses.create(model="tiny", input=[*HELLO, *(item.model_dump() for item in whole.output),
                                                                  *HELLO], max_output_tokens=1)
        self.assertEqual(again.usage.output_tokens, 1)

    def test_errors(self):
        with self.assertRaises(self.openai.BadRequestError) as caught:
            self.chat(tools=[{"type": "function", "function": {"name": "f"}}])
        self.assertEqual((caught.exception.param, caught.exception.code), ("tools", "unsupported_parameter"))
        with self.assertRaises(self.openai.APIError):  # within a stream
            for _ in self.client.chat.completions.create(model="tiny", messages=HELLO, stream=True, max_tokens=8000,
                                                         extra_body={**MORE, "deadline_ms": 20}):
                pass


@needs_packages
class Anthropic(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import anthropic
        cls.anthropic = anthropic
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="none", max_retries=0, timeout=60)
        cls.addClassCleanup(cls.client.close)

    arguments_of = dict(model="tiny", messages=HELLO, max_tokens=10, extra_body=MORE)

    def test_messages(self):
        whole = self.client.messages.create(**self.arguments_of)
        self.assertEqual((whole.stop_reason, whole.usage.output_tokens), ("max_tokens", 10))
        with self.client.messages.stream(**self.arguments_of) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual((text, final.content[0].text), (whole.content[0].text,) * 2)
        self.assertEqual(final.usage.output_tokens, 10)
        with_system = self.client.messages.create(
            system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            **self.arguments_of)
        self.assertNotEqual(with_system.content[0].text, "")

    def test_tokens_are_counted(self):
        self.assertEqual(self.client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens, 9)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])

    def test_errors(self):
        with self.assertRaises(self.anthropic.BadRequestError) as caught:
            self.client.messages.create(tools=[{"name": "f", "input_schema": {"type": "object"}}], **self.arguments_of)
        self.assertIn("tools: is not supported", str(caught.exception))
        with self.assertRaises(self.anthropic.NotFoundError):
            self.client.messages.create(model="other", max_tokens=1, messages=HELLO)


if __name__ == "__main__":
    unittest.main()
