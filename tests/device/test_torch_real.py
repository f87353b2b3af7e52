"""`octavo serve --backend torch` on torch's CPU, asked by the official client: transformers' own text, alone
and in a crowd.

Weights are float64 codes, 1 GiB of them, read once for each step: a token takes about a third of a second.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from openai import OpenAI
from tests.real.conftest import gguf_path, oracle  # noqa: F401 - the default model's file, and its weights
from tests.waiting import LIMIT_S
from transformers import AutoTokenizer, LlamaForCausalLM

pytestmark = [pytest.mark.full, pytest.mark.real_model]

PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little",
    "def fibonacci(n):\n    ",
]
MAX_TOKENS = 10
FLAGS = ("--backend", "torch", "--device", "cpu", "--weights", "f32", "--kv", "f32")


@dataclass(frozen=True, slots=True)
class Told:
    """An answer: text, tokens as they are written, logprobs."""

    text: str
    tokens: list[str]
    logprobs: list[float]


class Server:
    """`octavo serve` as a process of its own. Close it."""

    def __init__(self, model: Path) -> None:
        sizes = ("--context-length", "512", "--kv-memory", "64MiB")
        command = [sys.executable, "-m", "octavo", "serve", str(model), "--port", "0", *sizes, *FLAGS]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.log: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            if " at http://" in line:
                break
        assert " at http://" in self.log[-1], "".join(self.log)
        self.client = OpenAI(
            base_url=self.log[-1].split(" at ")[1].split()[0], api_key="none", max_retries=0, timeout=60
        )
        self._name = self.client.models.list().data[0].id
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stdout or ()))
        self._reader.start()

    def ask(self, prompt: str, **fields: object) -> Told:
        """Greedy, unless fields say otherwise."""
        asked: dict[str, object] = {"temperature": 0, "max_tokens": MAX_TOKENS, "logprobs": 2, **fields}
        asked["extra_body"] = {"ignore_eos": True}
        answer = self.client.completions.create(model=self._name, prompt=prompt, **asked)  # type: ignore[call-overload]
        choice = answer.choices[0]
        return Told(choice.text, choice.logprobs.tokens, choice.logprobs.token_logprobs)

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        assert self.process.wait(LIMIT_S) == 0, "".join(self.log)
        self._reader.join()


@pytest.fixture(scope="module")
def server(gguf_path: Path) -> Iterator[Server]:  # noqa: F811
    server = Server(gguf_path)
    yield server
    server.close()


@pytest.fixture(scope="module")
def alone(server: Server) -> list[Told]:
    """Each prompt answered with nothing beside it."""
    return [server.ask(prompt) for prompt in PROMPTS]


def test_the_log_says_which_backend_and_why(server: Server) -> None:
    assert [line for line in server.log if "backend torch on torch's cpu: asked for" in line]


def test_greedy_texts_and_logprobs_equal_transformers(
    alone: list[Told],
    gguf_path: Path,  # noqa: F811
    oracle: LlamaForCausalLM,  # noqa: F811
) -> None:
    theirs = AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    for prompt, told in zip(PROMPTS, alone, strict=True):
        ids = theirs(prompt, return_tensors="pt").input_ids
        count = ids.shape[1]
        with torch.no_grad():
            whole = oracle.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=MAX_TOKENS,
                min_new_tokens=MAX_TOKENS,
            )
            wanted = torch.log_softmax(oracle(whole).logits[0, count - 1 : -1].double(), -1)
        assert told.text == theirs.decode(whole[0, count:])
        assert len(told.logprobs) == MAX_TOKENS
        own = wanted.gather(1, whole[0, count:, None])[:, 0]
        assert told.logprobs == pytest.approx(own.tolist(), abs=1e-4)


def test_alone_and_among_five_others_it_is_the_same(server: Server, alone: list[Told]) -> None:
    """In one crowd, greedy and sampled, prompts of other lengths: equal to the bit."""
    others = [
        (f"{PROMPTS[i % 3]} number {'and ' * (5 * i)}", {"temperature": 0.9, "seed": i}) for i in range(3)
    ]
    asked: list[tuple[str, dict[str, object]]] = [*((prompt, {}) for prompt in PROMPTS), *others]  # type: ignore[list-item]
    assert len(asked) == 6
    with ThreadPoolExecutor(6) as threads:
        crowd = list(threads.map(lambda one: server.ask(one[0], **one[1]), asked))
    assert crowd[:3] == alone
    assert len({told.text for told in crowd}) == 6
    prompt, sampled = asked[5]
    assert server.ask(prompt, **sampled) == crowd[5]
