"""`noisegate serve`: the scorer over HTTP."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from noisegate.pipeline.system.extras import require_extra

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def _option(*names: str, text: str, panel: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)


SCORER, LISTEN, LIMIT, WORK, URLS = "Scorer", "Listening and access", "Limits", "Work", "Pictures by URL"


def serve(
    host: Annotated[str | None, _option("--host", text="Address to listen on [127.0.0.1].", panel=LISTEN)] = None,
    port: Annotated[int | None, _option("--port", text="Port [8765]; 0 takes a free one.", panel=LISTEN)] = None,
    api_key: Annotated[
        list[str] | None,
        _option("--api-key", text="A hashed key, sha256:HEX, as --hash-key prints it; repeatable.", panel=LISTEN),
    ] = None,
    hash_key: Annotated[
        bool,
        _option(
            "--hash-key", text="Read a key from standard input, print what --api-key takes, and end.", panel=LISTEN
        ),
    ] = False,
    allow_open: Annotated[
        bool | None,
        _option("--allow-open", text="Listen beyond this machine without any key.", panel=LISTEN),
    ] = None,
    model: Annotated[
        str | None,
        _option("--model", "-m", text="As in annotate (default: the one of the run, else embedded).", panel=SCORER),
    ] = None,
    pretrained: Annotated[
        str | None, _option("--pretrained", "-p", text="Tag of open_clip, or a checkpoint file.", panel=SCORER)
    ] = None,
    device: Annotated[
        str | None, _option("--device", text="auto, cpu, cuda:0,cuda:1 for several, or all.", panel=SCORER)
    ] = None,
    dtype: Annotated[str | None, _option("--dtype", text="auto, float32, bfloat16 or float16.", panel=SCORER)] = None,
    batch_size: Annotated[
        int | None, _option("--batch-size", text="Items per encoder call (default: by device).", panel=SCORER)
    ] = None,
    run: Annotated[
        list[str] | None,
        _option(
            "--run",
            text="DIR or NAME=DIR of a finished run, to compare with and to look into; repeatable. The "
            "first one gives model, β and calibration, unless --model is given.",
            panel=SCORER,
        ),
    ] = None,
    scorer_run: Annotated[
        str | None, _option("--scorer-run", text="Name of the run that gives model, β and calibration.", panel=SCORER)
    ] = None,
    beta: Annotated[
        str | None,
        _option(
            "--beta", "-b", text="auto (of the run, else random_inputs), random_inputs or fixed:VALUE.", panel=SCORER
        ),
    ] = None,
    classes: Annotated[
        list[str] | None,
        _option(
            "--classes", text="A class set to judge labels by: cifar10, FILE or NAME=FILE; repeatable.", panel=SCORER
        ),
    ] = None,
    jobs_folder: Annotated[
        Path | None,
        _option("--jobs-folder", text="Where jobs and their tables are kept (default: no jobs).", panel=WORK),
    ] = None,
    root: Annotated[
        list[Path] | None, _option("--root", text="A folder that jobs may read shards from; repeatable.", panel=WORK)
    ] = None,
    parallel_jobs: Annotated[int | None, _option("--parallel-jobs", text="Jobs at once [1].", panel=WORK)] = None,
    decode_workers: Annotated[
        int | None, _option("--decode-workers", text="Decoding processes (default: one per processor).", panel=WORK)
    ] = None,
    batch_wait_ms: Annotated[
        float | None,
        _option("--batch-wait-ms", text="How long a busy encoder's next batch may fill up [5].", panel=WORK),
    ] = None,
    queue_items: Annotated[
        int | None, _option("--queue-items", text="Items admitted at once; more get 429 [2048].", panel=LIMIT)
    ] = None,
    queue_bytes: Annotated[
        int | None,
        _option(
            "--queue-bytes",
            text="Bytes of all bodies at once; more get 429 [1 GiB; up to three times that in memory].",
            panel=LIMIT,
        ),
    ] = None,
    max_items: Annotated[int | None, _option("--max-items", text="Items in one request [256].", panel=LIMIT)] = None,
    max_body_bytes: Annotated[
        int | None, _option("--max-body-bytes", text="Bytes of one request [64 MiB].", panel=LIMIT)
    ] = None,
    max_pixels: Annotated[
        int | None, _option("--max-pixels", text="Larger pictures get the status too_large [40 million].", panel=LIMIT)
    ] = None,
    max_image_bytes: Annotated[
        int | None, _option("--max-image-bytes", text="Likewise, for the picture's file [20 MB].", panel=LIMIT)
    ] = None,
    max_text_chars: Annotated[
        int | None, _option("--max-text-chars", text="Likewise, for captions [20000].", panel=LIMIT)
    ] = None,
    max_aspect: Annotated[
        int | None, _option("--max-aspect", text="Likewise, for one side over the other [200].", panel=LIMIT)
    ] = None,
    body_timeout: Annotated[
        float | None, _option("--body-timeout", text="Seconds that a body may take to arrive [30].", panel=LIMIT)
    ] = None,
    request_timeout: Annotated[
        float | None, _option("--request-timeout", text="Seconds until an admitted request gets 504 [60].", panel=LIMIT)
    ] = None,
    drain_seconds: Annotated[
        float | None, _option("--drain-seconds", text="Seconds to finish requests after a signal [30].", panel=LIMIT)
    ] = None,
    url_host: Annotated[
        list[str] | None,
        _option("--url-host", text="A host that pictures may be fetched from (default: none); repeatable.", panel=URLS),
    ] = None,
    url_max_bytes: Annotated[
        int | None, _option("--url-max-bytes", text="Bytes of one picture [20 MB].", panel=URLS)
    ] = None,
    url_timeout: Annotated[
        float | None, _option("--url-timeout", text="Seconds for one picture [10].", panel=URLS)
    ] = None,
    url_redirects: Annotated[
        int | None, _option("--url-redirects", text="Redirects to follow, each checked [3].", panel=URLS)
    ] = None,
    engine: Annotated[str | None, _option("--engine", text="local, or ray for Ray Serve.", panel=WORK)] = None,
    min_replicas: Annotated[
        int | None, _option("--min-replicas", text="With --engine ray: replicas to keep [1].", panel=WORK)
    ] = None,
    max_replicas: Annotated[
        int | None, _option("--max-replicas", text="With --engine ray: replicas to grow to [1].", panel=WORK)
    ] = None,
    log_format: Annotated[str | None, _option("--log-format", text="json or text.", panel=LISTEN)] = None,
    config: Annotated[
        Path | None,
        _option("--config", text="YAML file with settings, by the names of these flags with _.", panel=LISTEN),
    ] = None,
) -> None:
    """Score image-text pairs over HTTP, with the scorer that annotated the corpus, and look at them in a browser.

    [cyan]noisegate serve --run tables[/]

    [cyan]noisegate serve --model ViT-B-32 --pretrained laion2b_s34b_b79k --port 8765[/]

    then

    [cyan]curl -F image=@picture.jpg -F 'text=a red square' http://127.0.0.1:8765/v1/score[/]

    Every flag is also an environment variable (NOISEGATE_PORT) and a line of --config FILE.yaml (port: 8765; lists are
    runs, classes, roots, api_keys, url_hosts). Without keys it listens on this machine only. Ctrl-C or SIGTERM answers
    what was begun, then ends.
    """  # fmt: skip
    with_lists = {"api_key": "api_keys", "run": "runs", "root": "roots", "url_host": "url_hosts"}
    given = {with_lists.get(name, name): value or None if isinstance(value, list) else value for name, value in locals().items()
             if name not in ("config", "hash_key", "with_lists")}  # fmt: skip
    require_extra("service", "noisegate serve")
    from noisegate.service.guards.auth import hash_key as hashed
    from noisegate.service.guards.auth import read_key
    from noisegate.service.serve import run as start
    from noisegate.service.settings import load_settings

    if hash_key:
        print(hashed(read_key(sys.stdin)))
        return
    start(load_settings(config, **given))
