"""Tasks: the five keep their contracts, a folder of tasks is data and says in a sentence what is wrong with it, and rows of SWE-bench's shape become tasks without a future."""
import dataclasses
import json
import json as js
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harnesslab.fences import choose_fence, close_idle
from harnesslab.loop import UsageError
from harnesslab.patches import PatchError, read_changes, run_git
from harnesslab.tasks import (CommitFiles, Edits, Failed, Files, FolderCopy, HiddenTests, Judge, Script, Task, load_tasks, save_tasks, swe_bench_tasks, wordcount_tasks)
from harnesslab.scripted import _SOLUTIONS
from harnesslab.verifier import fresh_repo, validate, verify

TASKS = {task.id: task for task in wordcount_tasks()}


@pytest.fixture(scope="module")
def best():
    yield choose_fence("auto")
    close_idle()


# ---------------------------------------------------------------- the five
def test_the_five_keep_their_contract():
    assert list(TASKS) == ["fix-test", "normalize", "min-length", "rename", "locate"]
    words = {"fix-test": ["bug", "tests"], "normalize": ["tokenize()", "lower", "punctuation", "'Hello, hello!'", "two 'hello'", "don't"], "min-length": ["--min-length N", "default 1"],
             "rename": ["count_words", "word_counts", "everywhere", "alias"], "locate": ["(word, count)", "'function_name path/to/file.py'", "ANSWER.txt"]}
    for name, task in TASKS.items():
        assert all(word in task.prompt for word in words[name]) and task.solution and task.version == "1"
    import re
    for name, task in TASKS.items():  # the scripted solver recognises each by its prompt, and takes the first that fits
        assert next(job.name for job in _SOLUTIONS if re.search(job.match, task.prompt, re.I)) == name


def test_tasks_can_be_sent_to_another_process():
    for task in wordcount_tasks():
        again = pickle.loads(pickle.dumps(task))
        assert again == task and again.check is task.check


def test_a_task_refuses_what_cannot_work():
    good = {"id": "a", "prompt": "Do it.", "make_repo": Files(()), "check": print}
    for change, sentence in (({"id": "a/b"}, "id is up to 100"), ({"id": ""}, "id is up to 100"), ({"id": ".."}, "id is up to 100"), ({"id": "-x"}, "id is up to 100"), ({"prompt": " "}, "prompt is empty"), ({"version": 1}, "version is a text"),
                             ({"protected": ("../x",)}, "not one inside"), ({"protected": ("/etc",)}, "not one inside"), ({"protected": (".",)}, "not one inside"), ({"protected": ("./.",)}, "not one inside"), ({"protected": "tests"}, "a tuple of paths"), ({"protected": (1,)}, "not one inside")):
        with pytest.raises(UsageError, match=sentence):
            Task(**(good | change))
    assert Task(**(good | {"id": "django__django-11099", "protected": ("tests", "a/b.py")})).protected


def test_edits_need_their_old_text(tmp_path):
    Files((("a", "one\n"),))(tmp_path)
    with pytest.raises(ValueError, match="not there"):
        Edits((("a", "two", "three"),))(tmp_path)


# ---------------------------------------------------------------- folders
@pytest.fixture
def saved(tmp_path):
    return save_tasks(wordcount_tasks(), tmp_path / "tasks")


def test_the_five_survive_a_folder(saved, best):
    loaded = {task.id: task for task in load_tasks(saved)}
    assert loaded.keys() == TASKS.keys()
    for name, task in loaded.items():
        assert (task.prompt, task.version, task.protected) == (TASKS[name].prompt, TASKS[name].version, TASKS[name].protected)
    trials = validate(loaded.values(), fence=best)
    assert len(trials) == 15 and all(trial.good for trial in trials), "\n".join(map(str, trials))
    again = save_tasks(loaded.values(), saved.parent / "again")
    assert read_changes(saved, again)[0] == {}
    assert load_tasks(saved / "rename")[0].id == "rename"
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def test_a_patch_as_a_solution(saved):
    place = saved / "locate"
    subprocess.run(["rm", "-r", str(place / "solution")], check=True)
    (place / "solution.patch").write_text("diff --git a/ANSWER.txt b/ANSWER.txt\nnew file mode 100644\n--- /dev/null\n+++ b/ANSWER.txt\n@@ -0,0 +1 @@\n+format_report wordcount/report.py\n")
    [task] = load_tasks(place)
    repo = fresh_repo(task, saved.parent / "repo")
    task.solution(repo)
    assert (repo / "ANSWER.txt").read_text() == "format_report wordcount/report.py\n"
    with pytest.raises(PatchError):
        task.solution(repo)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


BROKEN = {
    "no task.toml": lambda p: (p / "task.toml").unlink(),
    "task.toml cannot be read": lambda p: (p / "task.toml").write_text("prompt = \n"),
    "cannot be read: 'utf-8'": lambda p: (p / "task.toml").write_bytes(b"\xff"),
    "no prompt; it needs": lambda p: (p / "task.toml").write_text("[check]\njudge = 'judge.py'\n"),
    "no check; it needs": lambda p: (p / "task.toml").write_text("prompt = 'x'\n"),
    "prompt must be a text": lambda p: (p / "task.toml").write_text("prompt = ['x']\n[check]\njudge = 'judge.py'\n"),
    "check must be a table": lambda p: (p / "task.toml").write_text("prompt = 'x'\ncheck = 'judge.py'\n"),
    "has 'promt', which means nothing": lambda p: (p / "task.toml").write_text("promt = 'x'\n"),
    "has 'timeout', which means nothing": lambda p: (p / "task.toml").write_text("prompt = 'x'\n[check]\njudge = 'judge.py'\ntimeout = 3\n"),
    "prompt is empty": lambda p: (p / "task.toml").write_text("prompt = ' '\n[check]\njudge = 'judge.py'\n"),
    "protected must be a list of texts": lambda p: (p / "task.toml").write_text("prompt = 'x'\nprotected = [1]\n[check]\njudge = 'judge.py'\n"),
    "'nowhere' is not in the repo": lambda p: (p / "task.toml").write_text("prompt = 'x'\nprotected = ['nowhere']\n[check]\njudge = 'judge.py'\n"),
    "'..' is not one inside": lambda p: (p / "task.toml").write_text("prompt = 'x'\nprotected = ['..']\n[check]\njudge = 'judge.py'\n"),
    "exactly one of judge": lambda p: (p / "task.toml").write_text("prompt = 'x'\n[check]\njudge = 'judge.py'\nscript = 'judge.py'\n"),
    "needs exactly one of": lambda p: (p / "task.toml").write_text("prompt = 'x'\n[check]\nfail_to_pass = []\n"),
    "fail_to_pass must be a list": lambda p: (p / "task.toml").write_text("prompt = 'x'\n[check]\nfail_to_pass = 'x'\n"),
    "packages must be true or false": lambda p: (p / "task.toml").write_text("prompt = 'x'\n[check]\njudge = 'judge.py'\npackages = 'x'\n"),
    "no file other.py in the folder checks": lambda p: (p / "task.toml").write_text("prompt = 'x'\n[check]\njudge = 'other.py'\n"),
    "no file ../task.toml in": lambda p: (p / "task.toml").write_text("prompt = 'x'\n[check]\nscript = '../task.toml'\n"),
    "judge.py is not Python": lambda p: (p / "checks/judge.py").write_text("def check(:"),
    "defines no function check": lambda p: (p / "checks/judge.py").write_text("check = print\n"),
    "no folder repo": lambda p: os.rename(p / "repo", p / "other"),
    "no folder repo with": lambda p: (os.rename(p / "repo", p / "other"), (p / "repo").mkdir()),
    "repo is a file": lambda p: (os.rename(p / "repo", p / "other"), (p / "repo").write_text("")),
    "solution is a file": lambda p: (os.rename(p / "solution", p / "other"), (p / "solution").write_text("")),
    "two solutions": lambda p: (p / "solution.patch").write_text(""),
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_whatever_is_wrong_with_a_folder_is_one_sentence(sentence, saved):
    place = saved / "fix-test"
    BROKEN[sentence](place)
    with pytest.raises(UsageError) as caught:
        load_tasks(saved)
    text = str(caught.value)
    assert sentence in text and str(place) in text and "\n" not in text and "Traceback" not in text


def test_folders_that_hold_no_tasks(tmp_path):
    with pytest.raises(UsageError, match="There is no folder"):
        load_tasks(tmp_path / "nowhere")
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(UsageError, match="holds no tasks"):
        load_tasks(tmp_path)
    (tmp_path / "bad name").mkdir()
    write(tmp_path / "bad name/repo/a", "")
    write(tmp_path / "bad name/checks/judge.py", "def check(bench):\n    pass\n")
    write(tmp_path / "bad name/task.toml", "prompt = 'x'\n[check]\njudge = 'judge.py'\n")
    with pytest.raises(UsageError, match="bad name: A task's id"):
        load_tasks(tmp_path)
    with pytest.raises(UsageError, match="not an empty folder"):
        save_tasks([], tmp_path)


class Strange:
    def __call__(self, bench):
        pass


def test_a_check_that_is_no_data_cannot_be_saved(tmp_path):
    with pytest.raises(UsageError, match="cannot be saved"):
        save_tasks([dataclasses.replace(TASKS["locate"], check=Strange())], tmp_path / "x")


def test_scripts_and_hidden_tests_from_a_folder(tmp_path, best):
    write(tmp_path / "t/one/repo/calc.py", "def add(a, b):\n    return a - b\n")
    write(tmp_path / "t/one/checks/check.py", "import sys\nsys.path.insert(0, '.')\nfrom calc import add\nassert add(1, 2) == 3\n")
    write(tmp_path / "t/one/task.toml", 'prompt = "Ünï \\"x\\""\nversion = "2"\n[check]\nscript = "check.py"\n')
    write(tmp_path / "t/one/solution/calc.py", "def add(a, b):\n    return a + b\n")
    write(tmp_path / "t/two/repo/calc.py", "def add(a, b):\n    return a - b\n")
    write(tmp_path / "t/two/repo/old.py", "")
    write(tmp_path / "t/two/checks/test_calc.py", "import unittest\nfrom calc import add\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n    def test_zero(self):\n        self.assertEqual(add(1, 0), 1)\n")
    write(tmp_path / "t/two/task.toml", 'prompt = "x"\n[check]\nfail_to_pass = ["test_calc.T.test_add"]\npass_to_pass = ["test_calc.T.test_zero"]\npackages = false\n')
    write(tmp_path / "t/two/solution.patch", "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\ndiff --git a/old.py b/old.py\ndeleted file mode 100644\nindex e69de29..0000000\n")
    for folder in (tmp_path / "t", save_tasks(load_tasks(tmp_path / "t"), tmp_path / "again")):
        one, two = load_tasks(folder)
        assert isinstance(one.check, Script) and isinstance(two.check, HiddenTests) and one.prompt == 'Ünï "x"' and one.version == "2"
        trials = validate([one, two], fence=best)
        assert all(trial.good for trial in trials), "\n".join(map(str, trials))


def test_a_judge_finds_what_lies_beside_it(tmp_path, best):
    write(tmp_path / "t/repo/a.txt", "1")
    write(tmp_path / "t/checks/wanted.txt", "2")
    write(tmp_path / "t/checks/judge.py", "from pathlib import Path\n\n\ndef check(bench):\n    wanted = (Path(__file__).parent / 'wanted.txt').read_text()\n    bench.expect(bench.texts('a.txt').get('a.txt'), wanted, 'a.txt')\n")
    write(tmp_path / "t/task.toml", "prompt = 'x'\n[check]\njudge = 'judge.py'\n")
    [task] = load_tasks(tmp_path / "t")
    repo = fresh_repo(task, tmp_path / "repo")
    assert verify(task, repo, fence=best).reason == "a.txt should be '2', but is '1'"
    (repo / "a.txt").write_text("2")
    assert verify(task, repo, fence=best).passed and isinstance(task.check, Judge)


def test_a_folder_copy_leaves_git_and_cached_bytes_out(tmp_path):
    for path in ("a/.git/config", "a/x.py", "a/__pycache__/x.pyc", "a/sub/.git", "a/sub/y"):
        write(tmp_path / path, "x")
    FolderCopy(str(tmp_path / "a"))(tmp_path / "b")
    assert sorted(str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b").rglob("*") if p.is_file()) == ["sub/y", "x.py"]


# ---------------------------------------------------------------- rows of SWE-bench's shape
def git(repo, *words, **more):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "core.autocrlf=false"]
    return subprocess.run(["git", *who, *words], cwd=repo, check=True, capture_output=True, **more).stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with five commits: an old one, the base, a branch, the fix with its test, and later work. And the row for the fix."""
    home = tmp_path_factory.mktemp("clones")
    repo = home / "acme__calc"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")

    def commit(message, **files):
        for path, data in files.items():
            path = path.replace("__", "/").replace("_py", ".py")
            (repo / path).parent.mkdir(exist_ok=True)
            (repo / path).write_bytes(data if isinstance(data, bytes) else data.encode())
        git(repo, "add", "-A", "-f")
        git(repo, "commit", "-qm", message)
        return git(repo, "rev-parse", "HEAD").decode().strip()
    commit("old", calc__init_py="", secret="the future is in the past\n")
    (repo / "run.sh").write_text("#!/bin/sh\n")
    os.chmod(repo / "run.sh", 0o755)
    os.symlink("calc/core.py", repo / "link")
    (repo / ".gitattributes").write_text("crlf text eol=crlf\n*.id ident export-subst\n*.big filter=lfs export-ignore\n")
    (repo / ".gitignore").write_text("ignored\n")
    (repo / "secret").unlink()
    base = commit("base", calc__core_py="def add(a, b):\n    return a - b\n", tests__test_old_py="from calc.core import add\n\ndef test_zero():\n    assert add(1, 0) == 1\n",
                  **{"crlf": b"a\nb\n", "x.id": b"$Id$ $Format:%H$\n", "y.big": b"\0\1", "ignored": b"but tracked", "raw": b"a\r\nb\n"})
    git(repo, "tag", "v1")
    git(repo, "checkout", "-q", "-b", "other")
    commit("elsewhere", other="x")
    git(repo, "checkout", "-q", "main")
    fix = commit("fix", calc__core_py="def add(a, b):\n    return a + b\n", tests__test_new_py="import pytest\nfrom calc.core import add\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_add(n):\n    assert add(n, 2) == n + 2\n")
    commit("later", calc__more_py="answer = 42\n")
    git(repo, "remote", "add", "origin", "https://example.com/acme/calc")
    row = {"repo": "acme/calc", "instance_id": "acme__calc-1", "base_commit": base, "problem_statement": "add subtracts.", "FAIL_TO_PASS": json.dumps(["tests/test_new.py::test_add[1]", "tests/test_new.py::test_add[2]"]),
           "PASS_TO_PASS": ["tests/test_old.py::test_zero"], "version": "1.0",
           "patch": git(repo, "diff", base, fix, "--", "calc").decode(), "test_patch": git(repo, "diff", base, fix, "--", "tests").decode()}
    return repo, row


def test_the_agent_sees_one_commit_and_no_future(project, tmp_path):
    clone, row = project
    [task] = swe_bench_tasks([row], {"acme/calc": clone})
    repo = fresh_repo(task, tmp_path / "repo")
    out = lambda *words: git(repo, *words).decode()
    assert out("rev-list", "--all", "--count") == "1\n" and out("remote") == out("tag") == out("stash", "list") == out("reflog") == ""
    assert out("branch", "--all").strip() == "* main" and "Sample Author" in out("log", "--format=%an") and out("status", "--porcelain", "--untracked-files=all") == ""
    objects = {line.split()[0] for line in out("cat-file", "--batch-all-objects", "--batch-check").splitlines()}
    assert objects == {line.split()[0] for line in out("rev-list", "--objects", "--all").splitlines()}, "there are objects beside the commit"
    everything = b"".join(p.read_bytes() for p in repo.rglob("*") if p.is_file())
    assert b"answer = 42" not in everything and b"the future" not in everything and row["base_commit"].encode() not in everything and b"test_new" not in everything
    wanted = {"crlf": b"a\nb\n", "x.id": b"$Id$ $Format:%H$\n", "y.big": b"\0\1", "ignored": b"but tracked", "raw": b"a\r\nb\n"}
    assert {name: (repo / name).read_bytes() for name in wanted} == wanted
    assert os.readlink(repo / "link") == "calc/core.py" and os.access(repo / "run.sh", os.X_OK) and not (repo / "secret").exists()


def test_rows_become_tasks_that_hold(project, tmp_path, best):
    clone, row = project
    [task] = swe_bench_tasks([row], clone.parent)
    assert (task.id, task.prompt) == ("acme__calc-1", "add subtracts.") and task.check.pass_to_pass == ("tests/test_old.py::test_zero",)
    trials = validate([task], fence=best)
    assert all(trial.good for trial in trials), "\n".join(map(str, trials))
    repo = fresh_repo(task, tmp_path / "repo")
    (repo / "tests/test_new.py").write_text("def test_add(): pass\n")
    (repo / "tests/test_old.py").write_text("def test_zero(): pass\n")
    (repo / "conftest.py").write_text("import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n    out = yield\n    out.get_result().outcome = 'passed'\n")
    verdict = verify(task, repo, fence=best)
    assert not verdict.passed and "test_add" in verdict.reason, verdict
    task.solution(repo)
    assert verify(task, repo, fence=best).passed
    assert pickle.loads(pickle.dumps(task)) == task


def test_rows_from_files(project, tmp_path):
    clone, row = project
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n\n" + json.dumps(row | {"instance_id": None}) + "\n")
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    tasks = swe_bench_tasks(tmp_path / "rows.jsonl", clone.parent, python="/usr/bin/python3")
    assert [task.id for task in tasks] == ["acme__calc-1", f"acme__calc-{row['base_commit'][:8]}"] and tasks[0].check.python == "/usr/bin/python3"
    assert len(swe_bench_tasks(str(tmp_path / "rows.json"), {"acme/calc": str(clone)})) == 1
    nested = tmp_path / "clones/acme"
    nested.mkdir(parents=True)
    git(tmp_path, "clone", "-q", "--bare", str(clone), str(nested / "calc"))
    assert swe_bench_tasks([row], tmp_path / "clones")[0].make_repo == CommitFiles(str(nested / "calc"), row["base_commit"])


@pytest.mark.parametrize("change, sentence", [
    ({"base_commit": ""}, "Row 1 has no base_commit"), ({"FAIL_TO_PASS": []}, "Row 1 has no FAIL_TO_PASS"), ({"repo": "acme/other"}, "no clone of acme/other in"), ({"base_commit": "0" * 40}, "has no commit 0000"),
    ({"FAIL_TO_PASS": "[1"}, "FAIL_TO_PASS is not a list"), ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS is not a list"), ({"PASS_TO_PASS": {"a": 1}}, "PASS_TO_PASS is not a list"), ({"instance_id": "a b"}, "id is up to 100"),
])
def test_wrong_rows_are_one_sentence(change, sentence, project):
    clone, row = project
    with pytest.raises(UsageError, match=sentence):
        swe_bench_tasks([row | change], clone.parent)


def test_other_wrong_rows(project, tmp_path):
    clone, row = project
    with pytest.raises(UsageError, match="Row 2 has no repo"):
        swe_bench_tasks([row, "x"], clone.parent)
    with pytest.raises(UsageError, match="no clone of acme/calc in the repos that were given"):
        swe_bench_tasks([row], {})
    with pytest.raises(UsageError, match="cannot be read"):
        swe_bench_tasks(tmp_path / "none.jsonl", clone.parent)
    (tmp_path / "torn.jsonl").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        swe_bench_tasks(tmp_path / "torn.jsonl", clone.parent)


def test_names_as_unittest_prints_them():
    from harnesslab.tasks import _dotted
    assert [_dotted(name) for name in ("test_a (x.y.T)", "test_a (x.y.T.test_a)", "x.y.T.test_a", "t.py::test_a[(1)]")] == ["x.y.T.test_a", "x.y.T.test_a", "x.y.T.test_a", "t.py::test_a[(1)]"]


def test_no_judge_is_silent_about_python_versions():
    """The files that run in a fence must do on an older Python than ours."""
    import ast
    import inspect

    from harnesslab import probe
    parts = [probe._plain, probe._value, probe._program, probe._hush, probe._take, probe._send, probe._answer, probe._run_unittest, probe._run_pytest, probe._run_script]
    for part in parts:
        ast.parse(inspect.getsource(part), feature_version=(3, 8))
    assert sys.version_info >= (3, 11) and Path(probe.__file__).exists()


# ---------------------------------------------------------------- what is saved is what is loaded
WANTED, LIMIT, PATTERN = ["x"], 10 ** 6, re.compile("x")
START = Files((("a.txt", "x\r\nz\r\n"), ("gone.txt", "1\n"), ("tests/__init__.py", ""), ("tests/test_old.py", "import unittest\nclass T(unittest.TestCase):\n    def test_x(self):\n        self.fail()\n")))


class Wanted:
    lines = WANTED


def helper(text: str) -> list[str]:
    return text.split()[:1] if Path("a").name and len(text) < LIMIT else []


def one_line(bench): bench.expect(helper(bench.texts("a.txt")["a.txt"]), Wanted.lines, "a")


def with_alias(bench: "Any", least: int = LIMIT) -> None:
    """Uses a module under another name, and itself."""
    check_json = js.dumps(WANTED)
    if js.loads(check_json) != WANTED or with_alias.__name__ != "with_alias" or least != 10 ** 6:
        raise Failed("no")


def by_pattern(bench):
    assert PATTERN


def over_a_value(value):
    def check_value(bench):
        assert value
    return check_value


def saved_and_loaded(task, folder):
    [loaded] = load_tasks(save_tasks([task], folder))
    return loaded


@pytest.mark.parametrize("check", [one_line, with_alias])
def test_a_judge_is_saved_with_all_that_it_uses(check, tmp_path, best):
    task = Task("_a", "Do it.", START, check)
    loaded = saved_and_loaded(task, tmp_path / "tasks")
    assert loaded.id == "_a"                                             # also one that begins like a folder to skip
    verdict = verify(loaded, fresh_repo(loaded, tmp_path / "repo"), fence=best)
    assert verdict.passed, verdict
    (tmp_path / "repo/a.txt").write_text("no")
    assert verify(loaded, tmp_path / "repo", fence=best).passed == verify(task, tmp_path / "repo", fence=best).passed == (check is with_alias)


@pytest.mark.parametrize("check", [by_pattern, over_a_value(1), lambda bench: None])
def test_a_judge_that_no_file_can_say_is_refused(check, tmp_path):
    with pytest.raises(UsageError, match="Task a: its check uses .*cannot be written into a file"):
        save_tasks([Task("a", "Do it.", START, check)], tmp_path / "tasks")


def test_solutions_survive_byte_by_byte(tmp_path):
    def solution(repo):
        (repo / "a.txt").write_bytes("x\r\ny\r\n\xe9\r".encode("latin-1"))
        (repo / "gone.txt").unlink()
    loaded = saved_and_loaded(Task("a", "Do it.", START, one_line, solution), tmp_path / "tasks")
    START(tmp_path / "repo"), START(tmp_path / "other")
    loaded.solution(tmp_path / "repo"), solution(tmp_path / "other")
    assert read_changes(tmp_path / "repo", tmp_path / "other")[0] == {}


def test_hidden_tests_that_delete_a_file_survive(tmp_path, best):
    def tests(repo):
        (repo / "tests/test_new.py").write_text("import unittest\nclass T(unittest.TestCase):\n    def test_x(self): pass\n")
        (repo / "tests/test_old.py").unlink()
    task = Task("a", "Do it.", START, HiddenTests(("tests.test_new.T.test_x",), (), tests, packages=False))
    loaded = saved_and_loaded(task, tmp_path / "tasks")
    for each in (task, loaded):
        verdict = verify(each, fresh_repo(each, tmp_path / str(each is task)), fence=best)
        assert verdict.passed, verdict


def test_how_a_script_is_run_survives(tmp_path):
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/c.py").write_text("import httpx\n")
    for more in ({}, {"packages": True}, {"python": "/usr/bin/python3", "packages": True}):
        task = Task("a", "Do it.", START, Script(str(tmp_path / "checks"), "c.py", **more))
        check = saved_and_loaded(task, tmp_path / str(len(more))).check
        assert (check.name, check.python, check.packages) == ("c.py", task.check.python, task.check.packages)


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_rows_with_any_character(start, tmp_path):
    clone = tmp_path / "o__n"
    clone.mkdir()
    (clone / "a").write_text("1")
    run_git(clone, "init", "-q"), run_git(clone, "add", "-A"), run_git(clone, "commit", "-qm", "x")
    row = {"repo": "o/n", "base_commit": run_git(clone, "rev-parse", "HEAD").decode().strip(), "problem_statement": "a\u2028b\x85c\x1cd", "FAIL_TO_PASS": ["t.T.x"]}
    for text in (json.dumps(row, ensure_ascii=False) + "\r\n\n" + json.dumps(row), json.dumps([row, row])):
        (tmp_path / "rows").write_text(start + text, encoding="utf-8", newline="")
        assert [task.prompt for task in swe_bench_tasks(tmp_path / "rows", tmp_path)] == [row["problem_statement"]] * 2
    for key in ("repo", "base_commit", "problem_statement", "patch", "test_patch"):
        with pytest.raises(UsageError, match=f"Row 1: {key} is not a text"):
            swe_bench_tasks([row | {key: 5}], tmp_path)
