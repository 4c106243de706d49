"""Where settings come from, and what is refused in one line."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import typer

from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.settings import Limits
from noisegate.service.guards.middleware import hash_key
from noisegate.service.settings import Settings, load_settings
from tests.errors import refused

HASHED = hash_key("correct horse battery staple")


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "noisegate.yaml"
    file.write_text("port: 1\nmax_items: 1\nbatch_wait_ms: 1\nruns: {a: /x}\n", encoding="utf-8")
    monkeypatch.setenv("NOISEGATE_PORT", "2")
    monkeypatch.setenv("NOISEGATE_MAX_ITEMS", "2")
    found = load_settings(file, port=3, host=None)
    assert (found.port, found.max_items, found.batch_wait_ms, found.host) == (3, 2, 1, "127.0.0.1")
    assert found.runs == {"a": Path("/x")}


def test_lists_and_names_from_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOISEGATE_RUNS", f"one=/a,{tmp_path}/two")
    monkeypatch.setenv("NOISEGATE_CLASSES", '{"c": "cifar10"}')
    monkeypatch.setenv("NOISEGATE_URL_HOSTS", "a.example, b.example")
    monkeypatch.setenv("NOISEGATE_API_KEYS", f'["{HASHED}"]')
    found = load_settings(roots=["/data"])
    assert found.runs == {"one": Path("/a"), "two": tmp_path / "two"}
    assert (found.classes, found.url_hosts, found.api_keys) == ({"c": "cifar10"}, ["a.example", "b.example"], [HASHED])
    assert found.roots == [Path("/data")]


def test_defaults_are_those_of_the_plan() -> None:
    found = load_settings()
    assert (found.host, found.port, found.model, found.beta) == ("127.0.0.1", 8765, None, "auto")
    assert (found.max_body_bytes, found.max_items, found.queue_items) == (64 << 20, 256, 2048)
    assert found.limits == Limits(40_000_000, 20_000_000, 20_000, 200)
    assert (found.url_hosts, found.api_keys, found.allow_open, found.jobs_folder) == ([], [], False, None)


def test_sizes_follow_from_the_memory_budget() -> None:
    found = load_settings(memory_budget="1.2GB")
    assert (found.queue_bytes, found.max_body_bytes) == (100_000_000, 50_000_000)
    assert (found.decode_bytes, found.ahead_bytes) == (600_000_000, 75_000_000)
    assert load_settings(memory_budget="1.2GB", queue_bytes=4096).max_body_bytes == 2048
    assert load_settings(memory_budget="auto").queue_bytes >= 512_000_000 // 12


def test_settings_cross_processes() -> None:
    found = load_settings(port=5, runs={"a": "/x"})
    assert type(found) is Settings
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("given", "setting", "value"),
    [
        ({"host": "0.0.0.0"}, "host", "0.0.0.0"),
        ({"host": ""}, "host", ""),
        ({"port": 70_000}, "port", 70_000),
        ({"beta": "intersection"}, "beta", "intersection"),
        ({"api_keys": ["a plain key"]}, "api_keys", None),
        ({"scorer_run": "x"}, "scorer_run", "x"),
        ({"runs": ["a=/x", "a=/y"]}, "runs", "a"),
        ({"runs": {"../x": "/x"}}, "runs", "../x"),
        ({"max_items": 10, "queue_items": 9}, "queue_items", 9),
        ({"max_body_bytes": 4096, "queue_bytes": 2048}, "queue_bytes", 2048),
        ({"memory_budget": "100MB"}, "memory_budget", "100MB"),
        ({"memory_budget": "much"}, "memory_budget", "much"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas", 3),
        ({"prot": 5}, "prot", 5),
        ({"engine": "other"}, "engine", "other"),
        ({"request_timeout": 0}, "request_timeout", 0),
        ({"batch_size": 0}, "batch_size", 0),
        ({"batch_wait_ms": -1}, "batch_wait_ms", -1),
        ({"url_max_bytes": 0}, "url_max_bytes", 0),
        ({"url_timeout": -1}, "url_timeout", -1),
        ({"url_redirects": -1}, "url_redirects", -1),
    ],
)
def test_mistakes_are_one_line(given: dict[str, Any], setting: str, value: Any) -> None:
    with refused(setting, value) as error:
        load_settings(**given)
    assert "a plain key" not in str(error.value)
    assert "\n" not in str(error.value)


def test_beta_must_be_a_known_mode() -> None:
    with refused("beta", "high"):
        load_settings(beta="high")


@pytest.mark.parametrize(
    ("text", "setting"), [("prot: 5", "prot"), ("- 5", "config"), ("a: [", "config"), ("port: many", "port")]
)
def test_files_that_do_not_work(tmp_path: Path, text: str, setting: str) -> None:
    file = tmp_path / "noisegate.yaml"
    file.write_text(text, encoding="utf-8")
    with refused(setting):
        load_settings(file)
    with refused("config", tmp_path / "absent.yaml"):
        load_settings(tmp_path / "absent.yaml")


@pytest.mark.parametrize("given", [{"host": "::1"}, {"host": "localhost"}, {"host": "0.0.0.0", "allow_open": True},
                                   {"host": "0.0.0.0", "api_keys": [HASHED]}])  # fmt: skip
def test_hosts_that_are_fine(given: dict[str, Any]) -> None:
    assert load_settings(**given).host == given["host"]


def test_every_setting_is_a_flag_with_help() -> None:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    flags = {flag.name: flag for flag in command.get_params(typer.Context(command))}
    assert flags.keys() == {*Settings.model_fields, "hash_key", "config", "help"}
    assert flags["runs"].opts == ["--run"]
    assert flags["model"].opts == ["--model", "-m"]
    assert flags["allow_open"].is_flag
    assert flags["max_body_bytes"].help == "Bytes of one request (default: 64 MiB, at most half of queue_bytes)."
    assert all(flag.default is None for flag in flags.values() if flag.name != "help")  # environment and file come next
