"""Programs of others, as their users run them: lm-eval with the server's own tokenizer, LiteLLM's fallback
when a prompt is too long, curl as a browser's preflight. `make test-clients` installs what it needs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attack.house import serving

pytestmark = [pytest.mark.real_model, pytest.mark.clients]

CLIENTS = Path(sys.executable).parent.parent / "clients" / "bin"

TASKS = {
    "octavo_choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "octavo_likelihood": """
output_type: loglikelihood
doc_to_text: "{{question}}"
doc_to_target: " {{choices[answer]}}"
metric_list: [{metric: perplexity}, {metric: acc}]
""",
    "octavo_generate": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 8, temperature: 0}
filter_list:
  - name: first
    filter: [{function: regex, regex_pattern: "(\\\\w+)"}, {function: take_first}]
metric_list: [{metric: exact_match}]
""",
}
QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "banana"], "answer": 0},
    {"question": "One, two, three, four,", "choices": ["green", "five"], "answer": 1},
    {"question": "The opposite of hot is", "choices": ["cold", "seventeen"], "answer": 0},
]


def tool(name: str) -> str:
    path = CLIENTS / name
    if not path.exists():
        pytest.skip(f"{path} is not there: make test-clients installs it")
    return str(path)


def test_lm_eval_scores_and_generates_with_the_servers_own_tokenizer(tmp_path: Path) -> None:
    lm_eval = tool("lm_eval")
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    for name, text in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
            f"test_split: test\n{text}"
        )
    with serving(tmp_path) as house:
        model = (
            f"model=smollm2-135m,base_url={house.url}/v1/completions,tokenizer_backend=remote,"
            "num_concurrent=2,max_length=512"
        )
        told = subprocess.run(
            shlex.split(
                f"{lm_eval} --model local-completions --model_args {model} --tasks {','.join(TASKS)} "
                f"--include_path {tmp_path} --output_path {tmp_path}/out --batch_size 1"
            ),
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            env={
                "HOME": str(tmp_path),
                "HF_HUB_OFFLINE": "1",
                "PATH": "/usr/bin:/bin",
                "OPENAI_API_KEY": "none",
            },
        )
        assert told.returncode == 0, told.stderr[-4000:]
    [out] = (tmp_path / "out").rglob("results*.json")
    results = json.loads(out.read_text())["results"]
    assert results["octavo_choice"]["acc,none"] == 1.0
    assert 0.0 < results["octavo_likelihood"]["perplexity,none"] < 100.0
    assert results["octavo_generate"]["exact_match,first"] >= 1 / 3


FALLBACK = """
import sys
from litellm import Router
def entry(name, url):
    return {"model_name": name, "litellm_params": {
        "model": "openai/smollm2-135m", "api_base": url + "/v1", "api_key": "none"}}
router = Router(
    model_list=[entry("short", sys.argv[1]), entry("long", sys.argv[2])],
    context_window_fallbacks=[{"short": ["long"]}],
    num_retries=0,
)
for words in (10, 600):
    answer = router.completion("short", [{"role": "user", "content": "paper " * words}], max_tokens=4)
    print(answer.usage.prompt_tokens)
"""


def test_litellm_falls_back_to_a_longer_context(tmp_path: Path) -> None:
    python = tool("python")
    with (
        serving(tmp_path, "--context-length", "256") as short,
        serving(tmp_path, "--context-length", "2048") as long,
    ):
        told = subprocess.run(
            [python, "-c", FALLBACK, short.url, long.url], capture_output=True, text=True, timeout=120
        )
        assert told.returncode == 0, told.stderr[-4000:]
        few, many = map(int, told.stdout.split())
        assert few < 256 < 600 <= many
        assert "status=400" in short.log.read_text()


def test_a_browsers_preflight_by_curl(tmp_path: Path) -> None:
    page = "https://app.example"
    with serving(tmp_path, "--api-key", "secret", "--allowed-origin", page) as house:
        told = subprocess.run(
            shlex.split(
                f"curl -si -X OPTIONS {house.url}/v1/chat/completions -H 'Origin: {page}' "
                "-H 'Access-Control-Request-Method: POST' "
                "-H 'Access-Control-Request-Headers: authorization,content-type'"
            ),
            capture_output=True,
            text=True,
            timeout=20,
        ).stdout.lower()
    assert told.startswith("http/1.1 200")
    assert f"access-control-allow-origin: {page}" in told
    assert "post" in told
