"""Low-rank adapters from Python."""

import os
import tempfile
import threading
import unittest

import headrace
import tiny_adapter
import tiny_text_model


class Adapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        model = os.path.join(cls.folder, "model")
        os.mkdir(model)
        cls.model = headrace.Model.load(tiny_text_model.write(model), threads=1)
        cls.adapter = headrace.Adapter.load(cls.model, tiny_adapter.write(os.path.join(cls.folder, "first")))
        cls.other = headrace.Adapter.load(cls.model, tiny_adapter.write(os.path.join(cls.folder, "second"), seed=1))

    def test_description(self):
        about = self.adapter.describe()
        self.assertEqual((about["modules"], about["max_rank"]), (4, 3))
        self.assertNotEqual(about["identity"], self.other.describe()["identity"])

    def test_each_request_has_its_own(self):
        chosen = {None: None, "first": self.adapter, "second": self.other}
        arguments = dict(max_tokens=8, ignore_eos=True, logprobs=5)
        alone = {name: headrace.Scheduler(self.model).generate("hello", adapter=adapter, **arguments)
                 for name, adapter in chosen.items()}
        self.assertEqual(len({str(output.logprobs) for output in alone.values()}), 3)
        scheduler, together = headrace.Scheduler(self.model), {}

        def generate(name):
            together[name] = scheduler.generate("hello", adapter=chosen[name], **arguments)

        threads = [threading.Thread(target=generate, args=(name,)) for name in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, output in alone.items():
            self.assertEqual((output.tokens, output.logprobs), (together[name].tokens, together[name].logprobs))

    def test_sessions(self):
        session = headrace.Session(self.model)
        plain = session.evaluate([5, 6, 7, 8])
        session.set_adapter(self.adapter)
        adapted = session.evaluate([9])
        session.rewind(4)
        session.set_adapter(None)
        self.assertFalse((session.evaluate([9]) == adapted).all())
        session.rewind(0)
        self.assertTrue((session.evaluate([5, 6, 7, 8]) == plain).all())

    def test_what_is_refused(self):
        with self.assertRaises(headrace.Error) as raised:
            headrace.Adapter.load(self.model, tiny_adapter.write(os.path.join(self.folder, "dora"), use_dora=True))
        self.assertIn("/use_dora", raised.exception.place)
        with self.assertRaises(headrace.Error):
            headrace.Adapter.load(self.model, os.path.join(self.folder, "nothing"))
        with self.assertRaises(TypeError):
            headrace.Scheduler(self.model).generate("a", adapter="first")


if __name__ == "__main__":
    unittest.main()
