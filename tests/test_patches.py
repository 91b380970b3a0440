"""Patches: any change of a tree survives the way out and back, and nothing that a tree holds is run, followed, waited for or changed."""
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnesslab import patches
from harnesslab.loop import UsageError
from harnesslab.patches import PatchError, apply_patch, make_patch, plain_copy, read_changes, run_git, write_changes

ODD_BYTES = os.uname().sysname == "Linux"  # file names of any bytes

names = st.one_of(
    st.sampled_from(["a", "b", "c", "a.py", ".gitattributes", ".gitignore", "with space", "tab\t", 'quo"te', "new\nline", "-rf", "ünï", "*", "a\\b", "nul.txt", "git~1", ".gitmodules"]),
    *([st.binary(min_size=1, max_size=6).filter(lambda b: not set(b) & {0, 47} and b not in (b".", b"..")).map(os.fsdecode)] if ODD_BYTES else []),
).filter(lambda name: not patches._is_never_work(name))
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
data = st.one_of(st.binary(max_size=200), st.text(max_size=80).map(lambda t: t.encode("utf-8", "replace")),
                 st.sampled_from([b"", b"a\r\nb\r\n", b"a\nb", b"a\rb", b"\xff\xfe\x00", b"* text=auto eol=crlf working-tree-encoding=UTF-16 ident filter=x -diff\n",
                                  b"*\n", b"$Id$\n", b"diff --git a/x b/x\n--- a/x\n", b"GIT binary patch\n", b"\\ No newline at end of file\n", b"x" * 5000]))
entries = st.one_of(st.tuples(st.sampled_from(["100644", "100755"]), data),
                    st.tuples(st.just("120000"), st.sampled_from([b"a", b"b/c", b"nowhere", b"a.py"])))


def fits(tree):
    """No file is also a folder, and no link has a name that git refuses."""
    return all(not any(other.startswith(path + "/") for other in tree) for path in tree) and all(
        mode != "120000" or patches._stays_inside(path, os.fsdecode(content)) for path, (mode, content) in tree.items())


trees = st.dictionaries(paths, entries, max_size=6).filter(fits)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees, trees, st.booleans())
def test_any_change_survives(old, new, mixed):
    if mixed:  # keep some of the old files, so that changes, modes and deletions mix
        both = {**dict(list(old.items())[::2]), **new}
        new = both if fits(both) else new
    with tempfile.TemporaryDirectory() as folder:
        before, after, copy = (Path(folder) / name for name in ("before", "after", "copy"))
        for place, tree in ((before, old), (after, new), (copy, {})):
            place.mkdir()
            write_changes(place, tree)
        changes, notes = read_changes(before, after)
        assert notes == [] and set(changes) == {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
        patch = make_patch(before, changes)
        assert (patch == b"") == (changes == {})
        plain_copy(before, copy)
        apply_patch(copy, patch)
        assert read_changes(after, copy) == ({}, [])
        assert read_changes(before, after) == (changes, [])  # and nothing was changed by looking


def git(repo, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(["git", *who, *words], cwd=repo, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def pair(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    write_changes(before, {"a.txt": ("100644", b"one\n"), "d/b.txt": ("100644", b"two\n")})
    shutil.copytree(before, after)
    git(after, "init", "-q")
    git(after, "add", "-A")
    git(after, "commit", "-qm", "start")
    return before, after


def test_no_program_of_the_repo_runs(pair, tmp_path):
    before, after = pair
    trap = after / "trap.sh"
    trap.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/ran\ncat\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "diff.x.textconv", "diff.x.command", "diff.external", "core.pager", "core.sshCommand"):
        git(after, "config", key, str(trap))
    for hook in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "pre-applypatch"):
        (after / ".git/hooks").mkdir(exist_ok=True)
        shutil.copy(trap, after / ".git/hooks" / hook)
    (after / ".gitattributes").write_text("* filter=x diff=x\n")
    (after / "a.txt").write_text("changed\n")
    changes, _ = read_changes(before, after)
    patch = make_patch(before, changes)
    copy = tmp_path / "copy"
    plain_copy(before, copy)
    apply_patch(copy, patch)
    assert not (tmp_path / "ran").exists() and (copy / "a.txt").read_text() == "changed\n"
    git(after, "status")
    assert (tmp_path / "ran").exists(), "the trap is none"


@pytest.mark.parametrize("spoil", [
    lambda repo: git(repo, "commit", "-qam", "done"),
    lambda repo: git(repo, "add", "-A"),
    lambda repo: git(repo, "update-index", "--assume-unchanged", "a.txt"),
    lambda repo: git(repo, "update-index", "--skip-worktree", "a.txt"),
    lambda repo: git(repo, "config", "core.worktree", "/nowhere"),
    lambda repo: shutil.rmtree(repo / ".git"),
    lambda repo: (shutil.rmtree(repo / ".git"), (repo / ".git").write_text("gitdir: /nowhere\n")),
    lambda repo: (shutil.rmtree(repo / ".git"), os.symlink("/nowhere", repo / ".git")),
    lambda repo: (repo / ".git/HEAD").write_text("x"),
    lambda repo: (repo / ".git/index").write_bytes(b"DIRC\0\0\0\2\xff\xff\xff\xff"),
    lambda repo: (repo / ".git/objects/info/alternates").write_text("/nowhere\n"),
    lambda repo: (repo / ".git/info/exclude").write_text("*\n"),
    lambda repo: (repo / ".git/info/attributes").write_text("* filter=x text eol=crlf\n"),
    lambda repo: (git(repo, "commit", "-qam", "x"), git(repo, "replace", "HEAD", "HEAD~1")),
])
def test_git_of_the_repo_does_not_matter(pair, spoil):
    before, after = pair
    (after / "a.txt").write_text("changed\n")
    spoil(after)
    assert read_changes(before, after) == ({"a.txt": ("100644", b"changed\n")}, [])


def test_what_is_left_out_is_said(pair, tmp_path):
    before, after = pair
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", after / "absolute")
    os.symlink("../secret", after / "relative")
    os.symlink(".git/config", after / "settings")
    os.symlink("a.txt", after / ".gitmodules")
    os.mkfifo(after / "pipe")
    (after / "nested/.git").mkdir(parents=True)
    (after / "nested/.git/config").write_text("[core]")
    (after / "nested/kept.txt").write_text("kept")
    (after / "d/__pycache__").mkdir()
    (after / "d/__pycache__/b.cpython-311.pyc").write_bytes(b"x")
    (after / "b.PYC").write_bytes(b"x")
    deep = after
    for _ in range(60):
        deep = deep / ("n" * 40)
    os.makedirs(deep)
    (deep / "file").write_text("x")
    changes, notes = read_changes(before, after)
    assert list(changes) == ["nested/kept.txt"]
    assert len(notes) == 6 and all(note.startswith("left out: ") for note in notes)
    assert b"secret" not in make_patch(before, changes)


def test_a_tree_that_has_grown_beyond_all_reason(pair, monkeypatch):
    before, after = pair
    (after / "hole").touch()
    os.truncate(after / "hole", 1 << 42)
    with pytest.raises(PatchError, match="more than 100 MiB"):
        read_changes(before, after)
    os.unlink(after / "hole")
    monkeypatch.setattr(patches, "MAX_CHANGED", 1000)
    for number in range(5):
        (after / f"f{number}").write_bytes(b"x" * 300)
    with pytest.raises(PatchError, match="more than"):
        read_changes(before, after)
    monkeypatch.setattr(patches, "MAX_CHANGED", 100 << 20)
    monkeypatch.setattr(patches, "MAX_FILES", 3)
    with pytest.raises(PatchError, match="more than 3 files"):
        read_changes(before, after)


def test_without_rights(tmp_path):
    """As an ordinary user: the owner's own rights are missing, and missing again afterwards."""
    script = """
import os, sys
from pathlib import Path
from harnesslab.patches import read_changes, write_changes
base = Path(sys.argv[1])
write_changes(base / "before", {"a": ("100644", b"1"), "d/e/b": ("100644", b"2")})
write_changes(base / "after", {"a": ("100644", b"new"), "d/e/b": ("100644", b"new"), "f/c": ("100644", b"new")})
(base / "after/x").mkdir(); os.mkfifo(base / "after/x/pipe")
places = [(base / "after" / p, m) for p, m in (("d/e/b", 0), ("d/e", 0), ("d", 0o400), ("f", 0o300), ("a", 0o200), ("x", 0o100))]
for place, mode in places:
    os.chmod(place, mode)
changes, notes = read_changes(base / "before", base / "after")
assert {p: e and e[1] for p, e in changes.items()} == {"a": b"new", "d/e/b": b"new", "f/c": b"new"}, changes
assert len(notes) == 1, notes
for place, mode in reversed(places):
    assert place.stat().st_mode & 0o777 == mode, (place, oct(place.stat().st_mode))
    os.chmod(place, 0o700)
"""
    run_as_nobody(script, tmp_path)


def run_as_nobody(script, tmp_path):
    """Run a script as an ordinary user, with the package in a place that he can read; as ourselves if we are one."""
    import sys

    from conftest import ROOT
    from test_attacks import NOBODY, find_python

    base = Path(tempfile.mkdtemp(prefix="nobody-", dir="/tmp"))
    try:
        shutil.copytree(ROOT / "harnesslab", base / "code/harnesslab", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["chmod", "-R", "a+rX", str(base)], check=True)
        (base / "work").mkdir()
        user = {}
        python, packages = sys.executable, str(base / "code")
        if os.getuid() == 0:
            found = find_python(base / "code")
            if found is None:
                pytest.skip("optional: no Python with the packages that an ordinary user may run")
            python, packages = found
            user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            os.chown(base / "work", NOBODY, NOBODY)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": packages, "HOME": str(base / "work"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([python, "-c", script, str(base / "work")], env=env, cwd="/", capture_output=True, text=True, timeout=120, **user)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", str(base)])
        shutil.rmtree(base)


def test_git_gets_nothing_of_ours(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_API_KEY", "sk-secret")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text("[alias]\n\tshow-it = !env\n[user]\n\tname = Me\n")
    run_git(tmp_path, "init", "-q")
    assert "sk-secret" not in run_git(tmp_path, "-c", "alias.show-it=!env", "show-it").decode()
    assert "user.name" not in run_git(tmp_path, "config", "--list").decode()


def test_errors_are_sentences(tmp_path, monkeypatch):
    with pytest.raises(PatchError, match="^git log failed: "):
        run_git(tmp_path, "log")
    with pytest.raises(PatchError, match="git apply failed"):
        apply_patch(tmp_path, b"no patch at all\n")
    with pytest.raises(PatchError, match="took longer than 0 s"):
        run_git(tmp_path, "-c", "alias.nap=!sleep 5", "nap", seconds=0.2)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="need git"):
        run_git(tmp_path, "log")
    assert stat.S_ISDIR(tmp_path.stat().st_mode)


def test_changes_are_never_written_through_a_link(tmp_path):
    """Whatever stands where a file or one of its folders must be goes; what a link leads to stays."""
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    for folder in (outside, tree / "c.py/sub", tree / "real"):
        folder.mkdir(parents=True)
    for place in (outside / "x", tree / "real/x", tree / "b", tree / "c.py/sub/y"):
        place.write_text("old")
    os.symlink(outside, tree / "a")
    os.symlink("real", tree / "d")
    new = ("100644", b"new")
    write_changes(tree, {"a/x": new, "b/x": new, "c.py": new, "d/x": None, "d/z/x": new})
    assert (outside / "x").read_text() == "old" == (tree / "real/x").read_text()
    assert {path: (tree / path).read_text() for path in ("a/x", "b/x", "c.py", "d/z/x")} == dict.fromkeys(("a/x", "b/x", "c.py", "d/z/x"), "new")
    assert not (tree / "a").is_symlink() and not (tree / "d/x").exists()
