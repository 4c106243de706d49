"""Parse request bodies (JSON or multipart forms) into items for the engine; large ones in a thread."""

import asyncio
import base64
import binascii
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from noisegate.service.engine.items import Item
from noisegate.service.errors import ApiError, InvalidRequest, describe
from noisegate.service.settings import Settings

from .schemas import EmbedRequest, Pair, ScoreRequest

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

LARGE = 64 << 10  # bytes of JSON from which parsing moves to a thread
MAX_VALUES = 100_000  # objects and lists in one body; a few bytes of JSON can take a hundred bytes of memory, and time
MAX_NAMES = 100  # names in one object; requests have five
_DATA_URI = re.compile(r"data:(?:image/[a-z0-9.+-]+)?(?:;[a-z0-9=.+-]+)*;base64,", re.IGNORECASE)


class ScoreBody:
    """A parsed request for scores: its settings, the items to embed, and by item number the URLs still to be fetched."""

    def __init__(self, request: ScoreRequest, items: list[Item]) -> None:
        self.request, self.items = request, items
        self.urls = {i: pair.image_url for i, pair in enumerate(request.pairs) if pair.image_url is not None}


async def read_score(request: Request, settings: Settings) -> ScoreBody:
    """Read the body of POST /v1/score, JSON or form. Raise ApiError 400, 413, 415 or 422."""
    kind = _content_type(request)
    _refuse_compressed(request)
    if kind == "application/json":
        return await _in_thread_if_large(
            await request.body(), lambda body: _score_body(parse(body, ScoreRequest, settings), {}, settings)
        )
    if kind == "multipart/form-data":
        return await _read_form(request, settings)
    problem = f"{kind or 'no content type'}: use application/json or multipart/form-data"
    raise ApiError(415, "unsupported_media_type", problem)


async def read_embed(request: Request, settings: Settings) -> tuple[EmbedRequest, list[Item]]:
    """Read the body of POST /v1/embed and its items, images first."""
    if _content_type(request) != "application/json":
        raise ApiError(415, "unsupported_media_type", "use application/json")
    _refuse_compressed(request)

    def items_of(body: bytes) -> tuple[EmbedRequest, list[Item]]:
        wanted = parse(body, EmbedRequest, settings)
        pictures = [_picture(image, {}) for image in wanted.images]
        return wanted, [*pictures, *(Item(text=text) for text in wanted.texts)]

    return await _in_thread_if_large(await request.body(), items_of)


async def _in_thread_if_large(body: bytes, work: Callable[[bytes], T]) -> T:
    return work(body) if len(body) <= LARGE else await asyncio.to_thread(work, body)


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _refuse_compressed(request: Request) -> None:
    """Raise ApiError 415 for a compressed body: its size is unknown until it is unpacked."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise ApiError(415, "unsupported_media_type", "the body is compressed; send it without Content-Encoding")


def parse(body: bytes, model: type[M], settings: Settings) -> M:
    """Parse JSON into a model; raise ApiError 400 for invalid JSON, 413 for too many items, 422 for a wrong schema.

    Items are counted first, because no other thread of this process runs while pydantic checks a million items.
    """
    if body.count(b"{") + body.count(b"[") > MAX_VALUES or body.count(b",") > 6 * MAX_VALUES:
        raise InvalidRequest("the body holds too many values")
    try:
        document = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except RecursionError as error:
        raise ApiError(400, "bad_request", "the JSON is nested too deeply") from error
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            reason = "not UTF-8 text"
        elif isinstance(error, json.JSONDecodeError | _BadJson):
            reason = " ".join(str(error).split())[:200]
        else:
            reason = "a number has thousands of digits"
        raise ApiError(400, "bad_request", f"the body is no JSON: {reason}") from error
    if isinstance(document, dict):
        check_count(sum(len(value) for value in document.values() if isinstance(value, list)), settings)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InvalidRequest(describe(error.errors(include_input=False, include_url=False))) from error


class _BadJson(ValueError):
    """Invalid JSON that Python's parser accepts."""


def _refuse_constant(name: str) -> Any:
    raise _BadJson(f"{name} is no number in JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_NAMES:
        raise _BadJson(f"an object has more than {MAX_NAMES} names")
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _BadJson("a name is given twice in one object")
    return values


def check_count(count: int, settings: Settings) -> None:
    if count > settings.max_items:
        raise _too_many(f"{count} items; at most {settings.max_items}")


def _too_many(what: str) -> ApiError:
    return ApiError(413, "too_many_items", f"{what} in one request")


def _score_body(request: ScoreRequest, parts: dict[str, bytes], settings: Settings) -> ScoreBody:
    for i, pair in enumerate(request.pairs):
        if pair.image is not None and pair.image_url is not None:
            raise InvalidRequest(f"pairs.{i}: give image or image_url, not both")
    return ScoreBody(request, [_item(pair, parts) for pair in request.pairs])


def _item(pair: Pair, parts: dict[str, bytes]) -> Item:
    picture = Item() if pair.image is None else _picture(pair.image, parts)
    return Item(picture.image, pair.text, picture.problem)


def _picture(image: str, parts: dict[str, bytes]) -> Item:
    """Make an item with a picture from base64, a data URI or a part of the form; a bad picture becomes the item's problem."""
    if image.startswith("part:") and parts:
        data = parts.get(image.removeprefix("part:"))
        return Item(data) if data is not None else Item(problem=("no_image", "the request has no part of this name"))
    try:
        return Item(decode_base64(image))
    except ValueError as error:
        return Item(problem=("bad_image", str(error)))


def decode_base64(text: str) -> bytes:
    """Decode base64 or a data URI, strictly: no white space, standard alphabet, padding required.

    >>> decode_base64("data:image/png;base64,aGk="), decode_base64("aGk=")
    (b'hi', b'hi')
    """
    if text[:5].lower() == "data:":
        head = _DATA_URI.match(text[:200])
        if head is None:
            raise ValueError("the data URI is not one of a picture in base64, such as data:image/png;base64,…")
        text = text[head.end() :]
    if not text.isascii():
        raise ValueError("the image is not base64: it has characters beyond ASCII")
    try:
        return binascii.a2b_base64(text, strict_mode=True) if text else b""
    except binascii.Error as error:
        reason = f"the image is not base64 ({error}); use the letters with + and /, padding, and no line breaks"
        raise ValueError(reason) from error


def encode_row(row: Any, encoding: str) -> list[float] | str:
    """Encode an embedding as the request asks."""
    return base64.b64encode(row.astype("<f4").tobytes()).decode() if encoding == "base64" else row.tolist()


async def _read_form(request: Request, settings: Settings) -> ScoreBody:
    """Read a form: `image` and `text` fields in the same order, or a `request` part whose images are named part:NAME."""
    content_type = re.sub(r"(?i);\s*charset=[^;]*", "", request.headers["content-type"])
    # latin-1 keeps every byte, so that captions that are not UTF-8 are detected
    headers = Headers({"content-type": f"{content_type}; charset=latin-1"})
    most = settings.max_items
    parser = _Form(
        headers, request.stream(), max_files=most, max_fields=most + 3, max_part_size=settings.max_body_bytes
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, AssertionError) as error:
        reason = getattr(error, "message", "") or "no valid boundary"
        if reason.startswith("Too many"):
            raise _too_many(f"more than {most} items") from error
        problem = f"the body is no multipart form: {' '.join(reason.split())[:200]}"
        raise ApiError(400, "bad_request", problem) from error
    if not parser.is_complete:
        await form.close()
        raise ApiError(400, "bad_request", "the body is no multipart form: it ends before its last boundary")
    try:
        fields = [(name, await _bytes(value)) for name, value in form.multi_items()]
    finally:
        await form.close()
    return await asyncio.to_thread(_parse_form, fields, settings)


class _Form(MultiPartParser):
    """A form that keeps pictures in memory, limited by BodyLimit; `is_complete` once the last boundary has arrived."""

    spool_max_size = sys.maxsize
    is_complete = False

    def on_end(self) -> None:
        self.is_complete = True


async def _bytes(value: "UploadFile | str") -> bytes:
    return value.encode("latin-1") if isinstance(value, str) else await value.read()


_NO_PAIR = Pair.model_validate({})  # for forms, whose picture and caption are in the item


def _parse_form(fields: Sequence[tuple[str, bytes]], settings: Settings) -> ScoreBody:
    parts = dict(fields)
    several = () if "request" in parts else ("image", "text")
    twice = next((name for name, count in Counter(n for n, _ in fields if n not in several).items() if count > 1), None)
    if twice is not None:
        raise InvalidRequest(f"{twice[:60]}: give one part of this name")
    if "request" in parts:
        whole = parts.pop("request")
        return _score_body(parse(whole, ScoreRequest, settings), parts, settings)
    unknown = sorted({name for name, _ in fields} - {"image", "text", "classes", "against"})
    if unknown:
        raise InvalidRequest(f"{unknown[0][:60]}: no such field; use image and text, classes, against, or request")
    images = [data for name, data in fields if name == "image"]
    texts = [data for name, data in fields if name == "text"]
    if texts and len(images) != len(texts):
        raise InvalidRequest(f"{len(images)} fields image and {len(texts)} fields text; give one of each per pair")
    check_count(len(images), settings)
    captions = [_caption(data) for data in texts] or [Item()] * len(images)
    named = {name: data.decode("utf-8", "replace") for name, data in fields if name in ("classes", "against")}
    request = ScoreRequest(pairs=[_NO_PAIR] * len(captions), **named)
    return ScoreBody(
        request,
        [Item(image, item.text, None, item.text_problem) for image, item in zip(images, captions, strict=True)],
    )


def _caption(data: bytes) -> Item:
    """Decode a caption as the txt part of a shard is decoded."""
    try:
        return Item(text=data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Item(text_problem=("bad_text", f"caption is not UTF-8: {error.reason} at byte {error.start}"))
