"""The explorer's server: what it answers, whom it refuses, and that it stops when nobody waits."""

import csv
import html
import html.parser
import io
import json
import socket
import threading
import time
from urllib.parse import quote, urlsplit

import explored
import jax
import numpy as np
import pytest
import tiny
from explored import DOG, DOG_NEURON, EVIL, EVIL_NEURON, HOSTILE, LAYER, ask, post

from interp import explore, rank, show
from interp.explore import brain, guard, playground
from interp.explore.app import page_files
from interp.query import as_json
from jaxllm import model as forward_lib
from jaxllm.clamp import NeuronClamp, make_clamp
from jaxllm.cli import main
from jaxllm.errors import UserError

TOKEN = "a secret of enough letters"
PROMPT = "a dog"
VALUE = 5000  # of the planted neuron, far above what all the rest of the model writes


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    return explored.make(tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="module")
def address(explorer):
    with explore.serving(explorer, explore.Door("127.0.0.1", None)) as address:
        yield address


@pytest.fixture(scope="module")
def guarded(explorer):
    with explore.serving(explorer, explore.Door("127.0.0.1", TOKEN)) as address:
        yield address


def events(address, data):
    answer = post(address, "/api/generate", data)
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.decode().splitlines()]


def greedy(model, clamps, count):
    """The answer by reading everything anew for every token, without a cache."""
    cfg = model.checkpoint.config
    forward = jax.jit(
        lambda tokens, lengths: forward_lib.logits(
            model.params, forward_lib.forward(model.params, cfg, tokens, lengths=lengths, clamp=make_clamp(cfg, clamps))
        )
    )
    ids = model.tokenizer.encode(PROMPT)
    start = len(ids)
    while len(ids) - start < count and not (ids[start:] and ids[-1] in model.checkpoint.stop_ids):
        tokens = np.zeros((1, 32), np.int32)
        tokens[0, : len(ids)] = ids
        ids.append(int(forward(tokens, np.array([len(ids)]))[0, len(ids) - 1].argmax()))
    return ids[start:]


class TestAnswers:
    def test_the_planted_neuron_is_found(self, address):
        found = ask(address, "/api/search?q=%20dog&by=token").json()["matches"][0]
        assert (found["layer"], found["neuron"], found["pole"]) == (LAYER, DOG_NEURON, "+")
        assert found["tokens"][0][0] == "␣dog"
        assert found["tokens"][0][2] is True

    def test_a_neuron_is_what_show_tells(self, explorer, address):
        answer = ask(address, f"/api/neuron/{LAYER}/{DOG_NEURON}").json()
        assert answer == as_json(show(explorer.atlas, LAYER, DOG_NEURON))
        by_hand = explored.top_tokens(explored.weights(), LAYER, DOG_NEURON)[:8]
        assert [t["id"] for t in answer["poles"][0]["tokens"]] == by_hand.tolist()

    def test_the_decodes_are_of_up_gate_and_down(self, explorer, address):
        found = ask(address, f"/api/neuron/{LAYER}/{EVIL_NEURON}/decodes").json()
        assert found["decodes"]["up"][0][0][0] == found["decodes"]["down"][0][0][0] == explorer.atlas.tokens.display[EVIL]
        values = explored.weights()
        gate = values["lm_head.weight"] @ values[f"model.layers.{LAYER}.mlp.gate_proj.weight"][EVIL_NEURON]
        names = explorer.atlas.tokens.display
        assert [t for t, _ in found["decodes"]["gate"][0]] == [names[i] for i in np.argsort(-gate)[:10]]
        assert [t for t, _ in found["decodes"]["gate"][1]] == [names[i] for i in np.argsort(gate)[:10]]
        assert found["sign"]["sign"] == 1

    def test_neighbours_natural_values_and_contexts(self, explorer, address):
        near = ask(address, f"/api/neuron/{LAYER}/{DOG_NEURON}/neighbours?pole=%2B").json()
        assert len(near) == 12
        assert abs(near[0]["cosine"]) >= abs(near[-1]["cosine"])
        natural = ask(address, f"/api/neuron/{LAYER}/{DOG_NEURON}/natural").json()
        assert natural["min"] <= natural["mean"] <= natural["max"]
        contexts = ask(address, f"/api/neuron/{LAYER}/{DOG_NEURON}/contexts").json()
        assert contexts["highest"][0]["value"] == pytest.approx(contexts["max"])
        assert contexts["lowest"][0]["value"] == pytest.approx(contexts["min"])
        assert sum(contexts["histogram"]["counts"]) == contexts["count"]

    def test_the_picture_has_a_code_for_every_neuron(self, explorer, address):
        answer = ask(address, "/api/picture?statistic=concepts")
        scale = json.loads(answer.headers["x-scale"])
        codes = np.frombuffer(answer.body, np.uint8).reshape(scale["shape"])
        values = scale["low"] + (codes - 1.0) / 254 * (scale["high"] - scale["low"])
        expected = rank(explorer.atlas, "concepts").score.max(-1)
        np.testing.assert_allclose(values, expected, atol=np.ptp(expected) / 254)

    def test_the_picture_of_a_search(self, address):
        answer = ask(address, "/api/picture?q=%20dog&by=token")
        codes = np.frombuffer(answer.body, np.uint8).reshape(json.loads(answer.headers["x-scale"])["shape"])
        assert codes[LAYER, DOG_NEURON] == 255
        assert (codes == 0).sum() > codes.size / 2

    def test_the_comparison_names_the_changed_neuron(self, address):
        found = ask(address, "/api/compare").json()
        assert [(row["layer"], row["neuron"]) for row in found["changed"]] == [(LAYER, DOG_NEURON)]
        assert found["changed"][0]["old"]["id"] == DOG
        both = ask(address, f"/api/compare/{LAYER}/{DOG_NEURON}").json()
        tops = [both[side]["poles"][0]["tokens"][0]["id"] for side in ("before", "after")]
        assert tops == [DOG, found["changed"][0]["new"]["id"]]

    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/api/neuron/0/999", 400),
            ("/api/neuron/9/0", 400),
            ("/api/neuron/0/99999999999999999999", 400),
            ("/api/neuron/x/0", 404),
            ("/api/picture?statistic=__class__", 400),
            ("/api/search?q=dog&limit=-1", 400),
            ("/api/search?q=(&by=regex", 400),
            ("/api/nothing", 404),
            ("/api/neuron/0/0/neighbours?pole=x", 400),
            ("/api/neuron/0/0/natural?site=nowhere", 400),
        ],
    )
    def test_what_does_not_exist_is_refused_with_a_reason(self, address, path, status):
        answer = ask(address, path)
        assert answer.status == status
        assert answer.json()["error"]

    def test_without_model_or_other_map_it_says_so(self, explorer, tmp_path):
        bare = explore.open_explorer(explorer.atlas)
        with explore.serving(bare, explore.Door("127.0.0.1", None)) as address:
            assert ask(address, "/api/map").json()["playground"] is None
            for path in (f"/api/neuron/0/0/{what}" for what in ("decodes", "contexts", "natural", "neighbours")):
                assert "start the explorer with --" in ask(address, path).json()["error"]
            assert "--compare" in ask(address, "/api/compare").json()["error"]
            assert "--model" in post(address, "/api/generate", {"prompt": "x"}).json()["error"]


class TestPlayground:
    def test_both_sides_are_what_generation_gives(self, explorer, address):
        model = explorer.brain
        asked = {"layer": LAYER, "neuron": DOG_NEURON, "value": VALUE, "site": "product"}
        got = events(address, {"prompt": PROMPT, "clamps": [asked], "max_tokens": 9})
        assert [e["event"] for e in got] == ["next", "piece", "piece", "piece", "scores", "end"]
        assert [len(e["clamped"]) for e in got if e["event"] == "piece"] == [1, 4, 4]
        for side, held in (("plain", []), ("clamped", [NeuronClamp(LAYER, DOG_NEURON, VALUE, site="product")])):
            shown = [display for e in got if e["event"] == "piece" for _, display in e[side]]
            assert shown == [model.tokenizer.display(i) for i in greedy(model, held, 9)]
        assert all(display == "␣dog" for e in got if e["event"] == "piece" for _, display in e["clamped"])

    def test_probabilities_agree_with_one_another(self, address):
        asked = {"layer": LAYER, "neuron": DOG_NEURON, "value": VALUE, "site": "product"}
        got = {e["event"]: e for e in events(address, {"prompt": PROMPT, "clamps": [asked], "max_tokens": 4})}
        before = {name: (a, b) for name, a, b in got["next"]["tokens"]}
        first = got["scores"]["clamped"][0]
        assert first["best"][0][0] == "␣dog"
        assert (first["other"], first["p"]) == pytest.approx(before["␣dog"], rel=1e-4)
        assert first["p"] > 0.9 > first["other"]
        assert got["next"]["kl"] > 1
        plain = got["scores"]["plain"][0]
        assert plain["p"] == pytest.approx(max(a for a, _ in before.values()), rel=1e-4)

    def test_without_a_clamp_both_sides_are_the_same(self, address):
        got = {e["event"]: e for e in events(address, {"prompt": PROMPT, "max_tokens": 4})}
        assert got["next"]["kl"] == 0
        assert got["scores"]["plain"] == got["scores"]["clamped"]

    def test_a_chat_goes_through_the_template(self, explorer):
        model = explorer.brain
        ids = playground.encode(model, playground.parse({"prompt": "hi", "chat": True}))
        assert model.tokenizer.decode(ids) == "hi: "

    @pytest.mark.parametrize(
        "change",
        [
            {"prompt": ""},
            {"prompt": "x" * 4001},
            {"prompt": "x" * 2000},  # more tokens than are answered
            {"prompt": 3},
            {"max_tokens": 257},
            {"max_tokens": 2.5},
            {"max_tokens": True},
            {"temperature": -1},
            {"temperature": float("nan")},
            {"seed": -1},
            {"clamps": [{}]},
            {"clamps": [{"layer": 9, "neuron": 0, "value": 1}]},
            {"clamps": [{"layer": 0, "neuron": 0, "value": float("inf")}]},
            {"clamps": [{"layer": 0, "neuron": 0, "value": 1, "site": "nowhere"}]},
            {"clamps": [{"layer": 0, "neuron": 0, "value": 1, "path": "/etc/passwd"}]},
            {"clamps": [{"layer": 0, "neuron": 0, "value": 1}] * 2},
            {"clamps": [{"layer": 0, "neuron": n, "value": 1} for n in range(33)]},
            {"text": "/etc/passwd"},
        ],
        ids=str,
    )
    def test_what_is_beyond_the_limits_is_refused_before_any_compute(self, address, change, monkeypatch):
        monkeypatch.setattr(playground, "answer", lambda *_: pytest.fail("it was computed"))
        answer = post(address, "/api/generate", {"prompt": PROMPT, **change})
        assert answer.status == 400
        assert answer.json()["error"]

    @pytest.mark.parametrize("body", [b"", b"{", b"[" * 50_000, b"\xff"], ids=len)
    def test_what_is_not_json_is_refused(self, address, body):
        assert post(address, "/api/generate", body).status == 400


class TestTurns:
    @pytest.fixture
    def slow(self, explorer, monkeypatch):
        """A generation that makes a piece every 50 ms for a minute, and counts them."""
        made = []

        def answer(*_):
            try:
                for i in range(1200):
                    made.append(i)
                    time.sleep(0.05)
                    yield {"event": "piece", "plain": [], "clamped": []}
            finally:
                made.append("closed")

        monkeypatch.setattr(playground, "answer", answer)
        with explore.serving(explorer, explore.Door("127.0.0.1", None)) as address:
            yield address, made

    def start(self, address):
        body = json.dumps({"prompt": PROMPT}).encode()
        netloc = urlsplit(address).netloc
        link = socket.create_connection(netloc.split(":"), timeout=10)
        lines = ["POST /api/generate HTTP/1.1", f"Host: {netloc}", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
        link.sendall(head.encode() + body)
        return link

    def test_a_generation_ends_when_the_page_goes_away(self, slow):
        address, made = slow
        link = self.start(address)
        assert b"piece" in read(link, b"piece")
        link.close()
        wait(lambda: made[-1] == "closed")
        assert len(made) < 100
        second = self.start(address)  # and the next one may start
        assert b"piece" in read(second, b"piece")
        second.close()
        wait(lambda: made[-1] == "closed")

    def test_one_at_a_time_and_few_that_wait(self, slow):
        address, made = slow
        links = [self.start(address)]
        read(links[0], b"piece")
        for _ in range(4):
            links.append(self.start(address))
            assert b'"wait"' in read(links[-1], b"wait")
        assert b" 429 " in read(self.start(address), b"busy")
        for link in reversed(links):
            link.close()
        wait(lambda: made[-1] == "closed")
        assert made.count(0) == 1  # those that waited never began


def read(link, until, seconds=20):
    """What comes until some bytes have come."""
    link.settimeout(seconds)
    got = b""
    while until not in got:
        part = link.recv(4096)
        if not part:
            break
        got += part
    return got


def wait(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


class TestDoor:
    @pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "169.254.1.1"])
    def test_a_foreign_name_for_this_machine_is_refused(self, address, host):
        assert ask(address, "/api/map", Host=host).status == 403
        assert ask(address, "/", Host=host).status == 403

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "[::1]:99"])
    def test_its_own_names_are_answered(self, address, host):
        assert ask(address, "/api/map", Host=host).status == 200

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
    def test_other_sites_may_not_post(self, address, origin):
        assert post(address, "/api/generate", {"prompt": PROMPT}, Origin=origin).status == 403

    def test_its_own_origin_may(self, address):
        origin = address.rstrip("/")
        assert post(address, "/api/generate", {"prompt": PROMPT, "max_tokens": 1}, Origin=origin).status == 200

    def test_a_browser_that_says_cross_site_is_refused(self, address):
        assert ask(address, "/api/neuron/0/0", Sec_Fetch_Site="cross-site").status == 403
        assert ask(address, "/api/neuron/0/0", Sec_Fetch_Site="same-origin").status == 200

    def test_forms_may_not_post(self, address):
        assert post(address, "/api/generate", b"{}", content_type="text/plain").status == 415

    def test_large_bodies_are_refused(self, address):
        assert post(address, "/api/generate", b" " * (guard.MAX_BODY + 1)).status == 413
        chunks = iter([b" " * 1000] * 100)
        connection_headers = {"content_type": "application/json", "Transfer_Encoding": "chunked"}
        assert ask(address, "/api/generate", method="POST", body=chunks, **connection_headers).status == 413

    def test_other_methods_are_refused(self, address):
        for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
            assert ask(address, "/api/map", method=method).status == 405

    def test_nothing_is_had_without_the_token(self, guarded):
        assert ask(guarded, "/").status == 200  # the page, which asks for it
        for path in ("/api/map", "/api/search?q=dog", "/api/export/report.html", "/api/nothing"):
            assert ask(guarded, path).status == 401
        assert post(guarded, "/api/generate", {"prompt": PROMPT}).status == 401
        assert ask(guarded, "/api/map", Authorization=f"Bearer {TOKEN}x").status == 401
        assert ask(guarded, f"/api/map?token={quote(TOKEN)}").status == 401  # where it would be logged

    def test_the_token_opens_by_header_or_by_cookie(self, guarded):
        assert ask(guarded, "/api/map", Authorization=f"Bearer {TOKEN}").status == 200
        assert post(guarded, "/login", {"token": "wrong"}).status == 401

    def test_login_gives_a_cookie_that_scripts_and_other_sites_cannot_use(self, guarded):
        answer = post(guarded, "/login", {"token": TOKEN})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert ask(guarded, "/api/map", Cookie=cookie.split(";")[0]).status == 200
        assert ask(guarded, "/api/map", Cookie=f"{guard.COOKIE}=x").status == 401

    def test_another_host_needs_a_token_of_some_length(self, explorer):
        for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
            with pytest.raises(UserError, match="give a secret with --token"):
                explore.Door(host, None)
        with pytest.raises(UserError, match="at least 16"):
            explore.Door("0.0.0.0", "short")
        assert explore.Door("0.0.0.0", TOKEN).is_own_host("any.name:8765")
        for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
            explore.Door(host, None)

    def test_every_answer_forbids_foreign_scripts(self, address):
        for path in ("/", "/main.js", "/api/map", "/api/nothing", "/nothing"):
            headers = ask(address, path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
        assert ask(address, "/api/map", Host="evil.example").headers["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize("path", ["/../pyproject.toml", "/%2e%2e/app.py", "/page/main.js", "/main.js/..", "//etc/passwd"])
    def test_no_request_names_a_file(self, address, path):
        assert ask(address, path).status == 404


class TestPage:
    def test_it_loads_nothing_from_elsewhere_and_has_no_inline_script(self):
        for name, (body, _) in page_files().items():
            text = body.decode()
            for word in (
                "https:",
                "@import",
                "url(",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ):
                assert word not in text, (name, word)
            assert text.count("http:") == text.count('"http://www.w3.org/2000/svg"'), name

        class Page(html.parser.HTMLParser):
            def handle_starttag(self, tag, attrs):
                assert not [name for name, _ in attrs if name.startswith("on") or name == "style"], tag
                assert tag != "style"
                assert tag != "script" or dict(attrs).get("src")

        Page().feed(page_files()["/"][0].decode())

    def test_every_module_that_is_imported_is_served(self):
        files = page_files()
        for body, _ in files.values():
            for line in body.decode().splitlines():
                if line.startswith("import ") and ' from "./' in line:
                    assert "/" + line.split('"./')[1].split('"')[0] in files


class TestExports:
    def test_csv_has_the_matches_and_survives_any_token(self, address):
        body = ask(address, f"/api/export/search.csv?q={quote(HOSTILE)}&by=token").body.decode()
        rows = list(csv.DictReader(io.StringIO(body)))
        assert (rows[0]["layer"], rows[0]["neuron"]) == (str(LAYER), str(EVIL_NEURON))
        neuron = list(csv.DictReader(io.StringIO(ask(address, f"/api/export/{LAYER}/{EVIL_NEURON}/csv").body.decode())))
        assert neuron[0]["token"].replace("␣", " ") == HOSTILE
        assert len(neuron) == 16

    def test_json_has_all_that_is_known(self, address):
        ask(address, f"/api/neuron/{LAYER}/{DOG_NEURON}/decodes")
        data = ask(address, f"/api/export/{LAYER}/{DOG_NEURON}/json").json()
        assert data["neuron"] == ask(address, f"/api/neuron/{LAYER}/{DOG_NEURON}").json()
        assert data["decodes"]["decodes"]["up"]

    def test_html_is_one_file_in_which_tokens_are_text(self, address):
        ask(address, f"/api/neuron/{LAYER}/{EVIL_NEURON}/decodes")
        for path in (f"/api/export/{LAYER}/{EVIL_NEURON}/html", f"/api/export/search.html?q={quote(HOSTILE)}&by=token"):
            text = ask(address, path).body.decode()
            assert "<img" not in text
            assert "&lt;img" in text
            assert "<script" not in text
            assert "default-src 'none'" in html.unescape(text)
            assert "src=" not in text.replace("src=x", "").replace("src&", "")

    def test_the_whole_map_is_one_page(self, address):
        assert b"Every neuron, layer by layer" in ask(address, "/api/export/report.html").body

    def test_neuronpedia(self, explorer, address):
        ask(address, f"/api/neuron/{LAYER}/{DOG_NEURON}/contexts")
        feature = ask(address, f"/api/export/{LAYER}/{DOG_NEURON}/neuronpedia.json").json()
        assert (feature["layer"], feature["index"]) == (f"{LAYER}-mlp", str(DOG_NEURON))
        assert feature["pos_str"][0] == " dog"
        logits = explorer.atlas.column("logits")[LAYER, DOG_NEURON]
        assert feature["pos_values"] == pytest.approx(logits[0].tolist())
        assert feature["neg_values"] == pytest.approx((-logits[1]).tolist())
        best = feature["activations"][0]
        assert best["values"][best["maxValueTokenIndex"]] == best["maxValue"] == pytest.approx(feature["maxActApprox"])

    def test_other_kinds_do_not_exist(self, address):
        assert ask(address, "/api/export/search.exe?q=dog").status == 404
        assert ask(address, "/api/export/0/0/exe").status == 404


class TestCommand:
    def test_it_opens_what_it_is_given(self, explorer, monkeypatch, capsys):
        seen = []
        monkeypatch.setattr(
            explore, "run", lambda explorer, door, sock, ready: seen.append((explorer, door, sock.getsockname()))
        )
        folder = explorer.atlas.path.parent
        arguments = ["--model", folder / "model", "--compare", folder / "tuned-map", "--text", folder / "text.txt"]
        assert main(["explore", str(folder / "map"), *map(str, arguments), "--port", "0", "--no-open"]) == 0
        opened, door, (host, port) = seen[0]
        assert opened.brain is not None
        assert opened.facts()["compare"].endswith("tuned")
        assert (door.host, door.token, host) == ("127.0.0.1", None, "127.0.0.1")
        assert f"http://127.0.0.1:{port}/" in capsys.readouterr().out

    def test_the_secret_comes_from_the_environment(self, explorer, monkeypatch):
        seen = []
        monkeypatch.setattr(explore, "run", lambda explorer, door, sock, ready: seen.append(door))
        monkeypatch.setenv("JAXLLM_TOKEN", TOKEN)
        assert main(["explore", str(explorer.atlas.path), "--port", "0", "--host", "0.0.0.0", "--no-open"]) == 0
        assert seen[0].knows(TOKEN)

    def test_mistakes_are_told(self, explorer, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(explore, "run", lambda *_: pytest.fail("it was served"))
        path, folder = str(explorer.atlas.path), explorer.atlas.path.parent
        for arguments, words in (
            (["--host", "0.0.0.0"], "--token"),
            (["--port", "99999"], "cannot listen"),
            (["--text", str(folder / "text.txt"), "--port", "0"], "--model"),
            (["--compare", str(tmp_path), "--port", "0"], "meta.json"),
        ):
            assert main(["explore", path, *arguments]) == 1
            assert words in capsys.readouterr().err

    def test_a_port_in_use_is_told(self, explorer, capsys):
        with explore.listen("127.0.0.1", 0) as sock:
            assert main(["explore", str(explorer.atlas.path), "--port", str(sock.getsockname()[1]), "--no-open"]) == 1
        assert "choose another --port" in capsys.readouterr().err

    def test_a_model_that_was_not_mapped_is_refused(self, explorer, tmp_path):
        with pytest.raises(UserError, match="not the model of"):
            brain.load(tiny.checkpoint(tmp_path / "m"), explorer.atlas, "tiny")


def test_threads_end_with_the_server(explorer):
    before = threading.active_count()
    with explore.serving(explorer, explore.Door("127.0.0.1", None)) as address:
        assert ask(address, "/api/map").status == 200
    wait(lambda: threading.active_count() <= before + 41)  # the pool of threads for handlers may stay
    with pytest.raises(OSError, match="refused"):
        ask(address, "/api/map")
