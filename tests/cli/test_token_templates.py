"""Templates of ``-o``: what kubectl's and kubeadm's users write gives what these print; the rest is told."""

from __future__ import annotations

import json
from typing import cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_cli.output import to_yaml
from nodeattest_cli.token import gotemplate, jsonpath
from nodeattest_kube.jsontypes import JsonObject

TOKEN: JsonObject = {
    "kind": "BootstrapToken",
    "token": "abcdef.0123456789abcdef",
    "usages": ["authentication", "signing"],
    "one.two": "dotted",
    "deep": {"a": {"b": "c"}, "n": 3, "t": True},
    "rows": [{"name": "x"}, {"name": "y"}],
}


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("{.token}", "abcdef.0123456789abcdef"),
        ('{.token}{"\\n"}', "abcdef.0123456789abcdef\n"),
        ("{'\\t'}|", "\t|"),
        ('{"a}b"}', "a}b"),
        ("{$.token}", "abcdef.0123456789abcdef"),
        ("{ .token }", "abcdef.0123456789abcdef"),
        ("{token}", "abcdef.0123456789abcdef"),
        ("plain .token", "plain .token"),
        ("{.nothing}", ""),
        ("{.nothing.at.all}", ""),
        ("{.usages}", '["authentication","signing"]'),
        ("{.usages[0]} {.usages[-1]}", "authentication signing"),
        ("{.usages[*]}", "authentication signing"),
        ("{.usages[1:]}{.usages[:1]}", "signingauthentication"),
        ("{range .usages[*]}{@}{','}{end}", "authentication,signing,"),
        ("{range .usages[*]}{.}{end}", "authenticationsigning"),
        ("{range .rows[*]}{.name}={range .name}{@}{end};{end}", "x=x;y=y;"),
        ("{.rows[*].name}", "x y"),
        ("{['token']}", "abcdef.0123456789abcdef"),
        ("{.one\\.two}", "dotted"),
        ("{.deep.a.b}{.deep.n}{.deep.t}", "c3true"),
        ("{.deep.a}", '{"b":"c"}'),
        ("{.deep.*}", '{"b":"c"} 3 true'),
    ],
)
def test_a_jsonpath_prints_as_kubectl_does(template: str, printed: str) -> None:
    assert jsonpath.compile_template(template).render(TOKEN) == printed


@pytest.mark.parametrize(
    "template",
    [
        "{.token", "{end}", "{range .usages[*]}", "{..token}", "{.rows[?(@.name=='x')]}", "{.usages[0,1]}",
        "{.usages[0:2:1]}", "{.usages[x]}", "{.a b}", '{"\\q"}', "{}}{", "x" * 5000,
    ],
)  # fmt: skip
def test_a_jsonpath_beyond_the_subset_is_refused_and_not_guessed(template: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        jsonpath.compile_template(template)


def test_an_index_that_does_not_exist_is_told() -> None:
    with pytest.raises(ValueError, match="index 5 of a list of 2"):
        jsonpath.compile_template("{.usages[5]}").render(TOKEN)


@pytest.mark.parametrize(
    "compiled", [jsonpath.compile_template("{.nothing}"), gotemplate.compile_template("{{.nothing}}")]
)
def test_a_missing_field_is_told_where_it_must_not_be_missing(
    compiled: jsonpath.Template | gotemplate.Template,
) -> None:
    with pytest.raises(ValueError, match="nothing"):
        compiled.render(TOKEN, missing_is_empty=False)


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("{{.token}} {{.expires}}\n", "abcdef.0123456789abcdef <no value>\n"),
        ('{{.token}}{{"\\n"}}', "abcdef.0123456789abcdef\n"),
        ("{{`a\\n`}}", "a\\n"),
        ("{{ .deep.a.b }}", "c"),
        ("a {{- .kind -}} b", "aBootstrapTokenb"),
        ("{{.usages}}", "[authentication signing]"),
        ("{{range .usages}}x{{.}}{{end}}", "xauthenticationxsigning"),
        ("{{.deep}}", "map[a:map[b:c] n:3 t:true]"),
        ("}} {", "}} {"),
        ('{{"}}"}}', "}}"),
    ],
)
def test_a_go_template_prints_as_go_does(template: str, printed: str) -> None:
    assert gotemplate.compile_template(template).render(TOKEN) == printed


@pytest.mark.parametrize(
    "template",
    [
        "{{",
        "{{.token",
        "{{end}}",
        "{{range .usages}}",
        "{{if .token}}x{{end}}",
        "{{.a | len}}",
        "{{$x}}",
        "{{len .a}}",
        "{{}}",
    ],
)
def test_a_go_template_beyond_the_subset_is_refused_and_not_guessed(template: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        gotemplate.compile_template(template)


@given(st.text(alphabet="{}[].:*$@'\"\\ `-abrangend0123\n", max_size=30))
def test_any_template_is_compiled_or_a_value_error(text: str) -> None:
    for compiling in (jsonpath.compile_template, gotemplate.compile_template):
        try:
            compiling(text).render(TOKEN)
        except ValueError:
            continue


@pytest.mark.parametrize(
    "text",
    [
        "1e5",
        "123456.0123456789e12345",
        "0x10",
        "y",
        "null",
        "true",
        "2026-01-01T00:00:00Z",
        "",
        "~",
        "1_000",
        "- a",
        "a: b",
    ],
)
def test_what_another_reader_takes_for_no_text_is_quoted(text: str) -> None:
    written = to_yaml({"a": text})
    assert written.startswith(('a: "', "a: '"))
    assert yaml.safe_load(written) == {"a": text}


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=40), max_size=4))
def test_yaml_reads_back_as_it_was(value: dict[str, str]) -> None:
    readable = cast("dict[str, str]", json.loads(json.dumps(value)))
    assert yaml.safe_load(to_yaml({**readable})) == readable
