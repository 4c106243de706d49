"""Every spelling of a URL and of an address that is meant to reach where it must not."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.service.guards.url_policy import Target, UrlError, UrlPolicy, is_public, parse_url, public_addresses
from tests.errors import refused

OPEN = UrlPolicy(("good.example", "*.pictures.example", "8.8.8.8", "[2001:4860:4860::8888]"))


def code_of(url: str, policy: UrlPolicy = OPEN) -> str:
    with pytest.raises(UrlError) as caught:
        policy.check(url)
    return caught.value.code


# --- the text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://good.example", Target("http", "good.example", 80, "/")),
        ("HTTPS://GOOD.Example/A.jpg?x=1&y=a b#part".replace(" ", "+"), "/A.jpg?x=1&y=a+b"),
        ("https://good.example:443/a", Target("https", "good.example", 443, "/a")),
        ("https://good.example./a", Target("https", "good.example", 443, "/a")),
        ("https://a.b.pictures.example/ü.png", Target("https", "a.b.pictures.example", 443, "/%C3%BC.png")),
        ("https://good。example/a", Target("https", "good.example", 443, "/a")),
        ("https://ｇｏｏｄ．ｅｘａｍｐｌｅ/", Target("https", "good.example", 443, "/")),
        ("https://8.8.8.8/a", Target("https", "8.8.8.8", 443, "/a")),
        ("https://[2001:4860:4860:0::8888]/a", Target("https", "2001:4860:4860::8888", 443, "/a")),
        ("https://good.example/a%20b%2Fc", Target("https", "good.example", 443, "/a%20b%2Fc")),
        ("https://good.example//evil.example/@x", Target("https", "good.example", 443, "//evil.example/@x")),
    ],
)
def test_what_is_allowed(url: str, target: Target | str) -> None:
    found = OPEN.check(url)
    assert (found.path if isinstance(target, str) else found) == target


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "017700000001",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "0x7f.0x0.0x0.0x1",
        "127.1",
        "127.0.1",
        "127.0.0.1.",
        "127.000.0.1",
        "256.0.0.1",
        "1.2.3.4.5",
        "good.example.0x7f",
        "①②⑦.⓪.⓪.①",
        "127。0。0。1",
        "１２７．１",
        "[::1",
        "::1",
        "[::1]x",
        "[::1%25lo]",
        "[fe80::1%25eth0]",
        "[fe80::1%eth0]",
        "[v1.x]",
        "%67ood.example",
        "good.example%00.evil.example",
        "good%2eexample",
        "good..example",
        ".good.example",
        "good.example..",
        "-good.example",
        "good.example-",
        "a" * 64 + ".example",
        ".".join(["a" * 60] * 5),
        "good.example:",
        "good.example:0",
        "good.example:65536",
        "good.example:80:80",
        "good.example:+80",
        "good.example:８０",
        "good.example:80x",
        "good.example:0x50",
        "",
        ":80",
        "*",
        "good.example,evil.example",
        "good.example;evil.example",
        "good.example℀evil",
        "xn--\u00fc.example",
    ],
)
def test_hosts_that_are_none(host: str) -> None:
    """Numbers that the C library takes for an address, dots and digits of other scripts, zones, ports that are none."""
    found = code_of(f"http://{host}/a.png")
    assert found == ("url_refused" if host in ("127.0.0.1.", "127。0。0。1", "①②⑦.⓪.⓪.①") else "bad_url")


@pytest.mark.parametrize(
    "url",
    [
        "http://good.example@127.0.0.1/",
        "http://user:password@good.example/",
        "http://@good.example/",
        "http://good.example＠127.0.0.1/",
        "http://good.example\\@127.0.0.1/",
        "http:\\\\good.example/",
        "http://good.example /",
        " http://good.example/",
        "http://good.example/\r\nHost: evil.example",
        "http://good.exam\tple/",
        "http://good.example/\x00",
        "http://good.example/\u00a0",
        "http://good.example/\ud800",
        "file:///etc/passwd",
        "gopher://good.example/",
        "ftp://good.example/",
        "data:image/png;base64,AAAA",
        "javascript:alert(1)",
        "//good.example/a",
        "good.example/a",
        "http:good.example",
        "http:/good.example",
        "http:///good.example",
        "http://",
        "",
        "http://good.example/" + "a" * 5000,
    ],
)
def test_urls_that_are_none(url: str) -> None:
    assert code_of(url) == "bad_url"


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/",
        "http://good.example.evil.example/",
        "http://evilgood.example/",
        "http://pictures.example/",
        "http://evilpictures.example/",
        "http://pictures.example.evil.example/",
        "http://sub.good.example/",
        "http://evil.example#good.example",
        "http://evil.example?good.example",
        "http://evil.example/good.example",
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://localhost/",
        "http://good.example:8080/",
        "http://good.example:22/",
        "https://good.example:6379/",
    ],
)
def test_hosts_and_ports_that_are_not_on_the_list(url: str) -> None:
    assert code_of(url) == "url_refused"


def test_nothing_is_fetched_by_default() -> None:
    with pytest.raises(UrlError, match="off on this server; send the image itself") as caught:
        UrlPolicy().check("https://good.example/a.png")
    assert caught.value.code == "url_refused"


def test_other_ports_can_be_allowed() -> None:
    policy = UrlPolicy(("good.example",), ports=(8443,))
    assert policy.check("https://good.example:8443/").host_header == "good.example:8443"
    assert code_of("https://good.example/", policy) == "url_refused"


def test_the_list_is_read_as_urls_are() -> None:
    policy = UrlPolicy(("GOOD.Example.", "*.Bücher.example", "[2001:4860:4860:0:0:0:0:8888]"))
    assert policy.hosts == ("good.example", "*.xn--bcher-kva.example", "2001:4860:4860::8888")
    assert policy.check("https://a.bücher.example/").host == "a.xn--bcher-kva.example"
    assert policy.check("https://[2001:4860:4860::8888]/").host_header == "[2001:4860:4860::8888]"


@pytest.mark.parametrize(
    "host", ["*", "*.", "*.*", "http://a.example", "a.example/x", "a.example:80", "", "*.10", "a@b"]
)
def test_a_list_that_cannot_be_meant_is_refused(host: str) -> None:
    with refused("url_hosts", host):
        UrlPolicy((host,))


@given(st.text(max_size=60) | st.builds("http://{}/".format, st.text(max_size=30)))
def test_any_text_is_a_target_or_a_typed_error(text: str) -> None:
    try:
        found = parse_url(text)
    except UrlError as error:
        assert error.code == "bad_url"
    else:
        assert found.host.isascii()
        assert found.host == found.host.lower()
        assert found.path.isascii()
        assert found.path.startswith("/")
        assert not set(found.host + found.path) & set(" \r\n\t\\")


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "203.0.113.1",
        "192.88.99.1",
        "168.63.129.16",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "::ffff:0:8.8.8.8",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::8.8.8.8",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2002:c0a8:101::1",
        "2001:0:7f00:1::1",
        "2001:0:808:808:0:0:f7f7:f7f7",
        "2001:4860::5efe:127.0.0.1",
        "2001:4860::200:5efe:10.0.0.1",
        "fe80::1",
        "fe80::1%lo",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
        "100::1",
        "2001:db8::1",
        "3fff::1",
        "5f00::1",
        "4000::1",
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    for answer in ([address], ["8.8.8.8", address], [address, "8.8.8.8"]):
        with pytest.raises(UrlError) as caught:
            public_addresses(answer)
        assert caught.value.code == "url_refused"
        assert address not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "93.184.215.14",
        "2001:4860:4860::8888",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_addresses_that_are_public(address: str) -> None:
    assert public_addresses([address, "8.8.4.4", address]) == [address, "8.8.4.4"]


@given(st.ip_addresses(v=4))
def test_no_spelling_in_ipv6_is_more_public_than_the_ipv4_inside(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    wrapped = [
        (0xFFFF << 32) | number,
        (0x64FF9B << 96) | number,
        (0x2002 << 112) | (number << 80) | 1,
        (0x20014860 << 96) | (0x5EFE << 32) | number,
    ]
    for value in wrapped:
        assert is_public(ipaddress.IPv6Address(value)) <= is_public(inner)


def test_an_empty_or_strange_answer() -> None:
    for answer, code in (([], "url_failed"), (["localhost"], "url_refused"), (["2130706433"], "url_refused")):
        with pytest.raises(UrlError) as caught:
            public_addresses(answer)
        assert caught.value.code == code
