"""What makes a test the same test from run to run, whoever reports it: pytest, ctest or any JUnit writer."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNNAMED = "(?)"
# The names of a suite that say nothing about the test: none, and ctest's without a name of the build.
_EMPTY_SUITES = frozenset({"", "(empty)"})
_WORKSPACE = re.compile(
    r"^(?:file://)?(?:/home/runner/work/[^/]+/[^/]+|/github/workspace|/__w/[^/]+/[^/]+|/builds/[^/]+/[^/]+|[A-Za-z]:/a/[^/]+/[^/]+)/"
)
_UNSTABLE = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"\b0x[0-9a-fA-F]{5,}\b"), "<address>"),
    (re.compile(r"(?<!\d)\d{4}-\d\d-\d\d[T ]\d\d[:-]\d\d[:-]\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (
        re.compile(r"(?:/private)?/(?:tmp|var/folders)/[^\s\]'\",)]+|[A-Za-z]:\\[^\s\]'\",)]*\\Temp\\[^\s\]'\",)]+"),
        "<path>",
    ),
    (re.compile(r"(?<![0-9A-Za-z])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{16,}(?![0-9A-Za-z])"), "<hex>"),
    (re.compile(r"(?<!\d)1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?!\d)"), "<time>"),
)


@dataclass(frozen=True, slots=True)
class TestIdentity:
    """A test within a project: empty strings are parts that the reporter does not have, never None.

    `suite` is the path of suites inside the report (the suite of `likewise.toml` belongs to the run). `variant`: what
    distinguishes several executions of one test in one report, such as a browser. The leg of a matrix belongs to the
    run too, so that a test is the same in CI and in an experiment.
    """

    __test__ = False  # not a test class, whatever pytest thinks of its name

    suite: str
    file: str
    classname: str
    name: str
    variant: str = ""

    @property
    def display(self) -> str:
        """Return the name for people.

        >>> TestIdentity("", "", "tests.test_a.TestX", "test_y[1]").display
        'tests.test_a.TestX::test_y[1]'
        >>> TestIdentity("basic", "", "", "adds", "chromium").display
        'basic > adds (chromium)'
        """
        head = self.classname or self.file
        text = f"{head}::{self.name or _UNNAMED}" if head else self.name or _UNNAMED
        if self.suite:
            text = f"{self.suite} > {text}"
        return f"{text} ({self.variant})" if self.variant else text

    @property
    def stable(self) -> TestIdentity:
        """Return the second key: the identity with what changes from run to run replaced by placeholders.

        Addresses, uuids, times, temporary paths and long hexadecimal words go; plain numbers stay, for they are
        usually parameters. Equal to the identity itself unless the name is unstable.

        >>> TestIdentity("", "", "t", "test_f[<object at 0x7f53d0c525d0>]").stable.name
        'test_f[<object at <address>>]'
        """
        return TestIdentity(
            stable_text(self.suite), stable_text(self.file), stable_text(self.classname), stable_text(self.name),
            stable_text(self.variant),
        )  # fmt: skip

    @property
    def is_unstable(self) -> bool:
        """Return whether the identity holds something that will differ in the next run."""
        return self.stable != self


def stable_text(text: str) -> str:
    """Return the text with addresses, uuids, times, temporary paths and long hexadecimal words as placeholders.

    >>> stable_text("case 123e4567-e89b-12d3-a456-426614174000 of 12")
    'case <uuid> of 12'
    """
    if not any(character.isdigit() for character in text) and "/tmp" not in text:  # noqa: S108
        return text
    for pattern, placeholder in _UNSTABLE:
        text = pattern.sub(placeholder, text)
    return text


def identity_from_node_id(node_id: str, variant: str = "") -> TestIdentity:
    """Return the identity of a pytest node id, equal to that of the same test in pytest's JUnit report.

    The rule is pytest's own (`_pytest.junitxml.mangle_test_address`), because its report keeps no border between
    module and class.

    >>> identity_from_node_id("tests/test_a.py::TestX::test_y[a::b]")
    TestIdentity(suite='', file='', classname='tests.test_a.TestX', name='test_y[a::b]', variant='')
    """
    path, bracket, parameters = node_id.partition("[")
    parts = path.split("::")
    parts[0] = dotted_module(parts[0])
    return TestIdentity("", "", ".".join(parts[:-1]), parts[-1] + bracket + parameters, variant)


def identity_from_ctest(name: str, variant: str = "") -> TestIdentity:
    """Return the identity of a test registered with ctest, whose name is all that it has.

    >>> identity_from_ctest("gdn.chunk_o")
    TestIdentity(suite='', file='', classname='', name='gdn.chunk_o', variant='')
    """
    return TestIdentity("", "", "", name, variant)


def dotted_module(path: str) -> str:
    """Return the path of a Python file as pytest writes it in a classname.

    >>> dotted_module("tests/unit/test_a.py")
    'tests.unit.test_a'
    """
    return path.replace("/", ".").removesuffix(".py")


def relative_file(file: str) -> str:
    r"""Return a report's file path with forward slashes and without the checkout's place on well-known CI hosts.

    >>> relative_file("/home/runner/work/repo/repo/src/a.spec.ts"), relative_file(".\\src\\a.cs")
    ('src/a.spec.ts', 'src/a.cs')
    """
    return _WORKSPACE.sub("", file.replace("\\", "/")).removeprefix("./")


def identity_from_junit(suite: str, file: str, classname: str, name: str) -> TestIdentity:
    """Return the identity of a JUnit case that is not pytest's; `suite` is the path of its suites, joined by " / ".

    A suite is left out where it repeats the class or says nothing; ctest writes the name twice.

    >>> identity_from_junit("com.acme.FooTest", "", "com.acme.FooTest", "adds").display
    'com.acme.FooTest::adds'
    >>> identity_from_junit("(empty)", "", "basic", "basic") == identity_from_ctest("basic")
    True
    """
    if suite in _EMPTY_SUITES:
        suite = ""
        if classname == name and not file:
            return TestIdentity("", "", "", name)
    elif suite == classname or classname.startswith(f"{suite}."):
        suite = ""
    return TestIdentity(suite, relative_file(file) if file else "", classname, name)
