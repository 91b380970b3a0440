"""The verifier: honest work passes in many forms, every cheat fails, and nothing that a repo does gets out, hangs or is raised."""
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harnesslab import verifier
from harnesslab.cheats import CHEATS, cheat, duel, naive_check
from harnesslab.fences import IMAGE, ProcessFence, choose_fence, close_idle
from harnesslab.keeper import CommandResult, remove_tree
from harnesslab.keeper import remove_tree
from harnesslab.loop import UsageError
from harnesslab.patches import PatchError, run_git
from harnesslab.tasks import Edits, Failed, Files, FolderCopy, HiddenTests, Judge, Patch, Script, Task, output_of, value_of, wordcount_tasks
from harnesslab.traces import Trace
from harnesslab.verifier import fresh_repo, suspicious, take_patch, validate, verify
from test_patches import run_as_nobody

TASKS = {task.id: task for task in wordcount_tasks()}
FENCES = ["process", *(["landlock", "namespace"] if sys.platform == "linux" else []), "container"]
CONTAINER = {"engine": os.environ.get("HL_ENGINE", ""), "image": os.environ.get("HL_IMAGE", IMAGE)}
linux = pytest.mark.skipif(sys.platform != "linux", reason="optional: needs Linux")


@pytest.fixture(params=FENCES)
def fence(request):
    try:
        return choose_fence(request.param, **(CONTAINER if request.param == "container" else {}))
    except UsageError as error:
        pytest.skip(f"optional: {error}")


@pytest.fixture(scope="module")
def best():
    yield choose_fence("auto")
    close_idle()


@pytest.fixture
def repo_of(tmp_path):
    return lambda task: fresh_repo(TASKS[task] if isinstance(task, str) else task, tmp_path / "repo")


def put(repo, path, text):
    (repo / path).parent.mkdir(parents=True, exist_ok=True)
    (repo / path).write_text(text)


def append(repo, path, text):
    with open(repo / path, "a") as file:
        file.write(text)


# ---------------------------------------------------------------- honest work
HONEST = {
    "fix-test": [
        ("pairs = sorted(counts.items(), key=lambda pair: pair[1])\n    return pairs[:k]", body) for body in (
            "return sorted(counts.items(), key=lambda pair: -pair[1])[:k]",
            "return counts.most_common(k)",
            "return Counter(counts).most_common(k)",
            "import heapq\n    return heapq.nlargest(k, counts.items(), key=lambda pair: pair[1])",
            "return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:k]",
            "print('noise' * 1000)\n    return sorted(counts.items(), key=lambda pair: pair[1])[::-1][:k]",
        )],
    "normalize": [
        ('return re.findall(r"\\S+", text)', body) for body in (
            'return [w for w in (t.strip(".,!?;:\\"()").lower() for t in text.split()) if w]',
            'import string\n    return [w.strip(string.punctuation) for w in text.lower().split()]',
            "return re.findall(r\"[a-z0-9]+(?:'[a-z0-9]+)*\", text.lower())",
            "return [re.sub(r\"^\\W+|\\W+$\", '', w).lower() for w in text.split()]",
        )],
}


@pytest.mark.parametrize("task, old, new", [(task, *change) for task, changes in HONEST.items() for change in changes])
def test_honest_ways_pass(task, old, new, repo_of, best):
    repo = repo_of(task)
    text = (repo / "wordcount/core.py").read_text()
    assert old in text
    (repo / "wordcount/core.py").write_text(text.replace(old, new))
    verdict = verify(TASKS[task], repo, fence=best)
    assert verdict.passed and not verdict.error, verdict.reason


def only_min_length(repo):
    text = (repo / "wordcount/cli.py").read_text()
    text = text.replace("counts = count_words(file.read())", "words = file.read()").replace('parser.add_argument("-k"', 'parser.add_argument("--min-length", default=1, type=int)\n    parser.add_argument("-k"')
    text = text.replace("print(format_report(top_k(counts", "kept = ' '.join(w for w in words.split() if len(w) >= args.min_length)\n    print(format_report(top_k(count_words(kept)")
    (repo / "wordcount/cli.py").write_text(text)


def rename_with_wrapper(repo):
    TASKS["rename"].solution(repo)
    text = (repo / "wordcount/core.py").read_text()
    (repo / "wordcount/core.py").write_text(text.replace("count_words = word_counts", "def count_words(text):\n    return word_counts(text)"))
    append(repo, "tests/test_core.py", "\nclass TestMore(unittest.TestCase):\n    def test_count_words(self):\n        pass\n")


@pytest.mark.parametrize("task, change", [
    ("min-length", only_min_length), ("rename", rename_with_wrapper),
    ("locate", lambda repo: put(repo, "ANSWER.txt", "format_report ./wordcount/report.py")),
    ("locate", lambda repo: put(repo, "ANSWER.txt", "\ufeffformat_report wordcount/report.py\r\n")),
    ("locate", lambda repo: (os.symlink(".", repo / "self"), put(repo, "a", "format_report wordcount/report.py"), os.symlink("self/self/a", repo / "ANSWER.txt"))),
    ("locate", lambda repo: put(repo, "ANSWER.txt", "  format_report\n/repo/wordcount/report.py\r\n")),
    ("locate", lambda repo: (put(repo, "notes/a.txt", "format_report wordcount/report.py"), os.symlink("notes/a.txt", repo / "ANSWER.txt"))),
])
def test_other_honest_ways_pass(task, change, repo_of, best):
    repo = repo_of(task)
    change(repo)
    verdict = verify(TASKS[task], repo, fence=best)
    assert verdict.passed, verdict.reason


def with_kinds(repo):
    TASKS["fix-test"].solution(repo)
    text = (repo / "wordcount/core.py").read_text()
    text = text.replace("return Counter(", "return Bag(").replace("return pairs[:k]", "return Ranking(Pair(Word(word), Number(n)) for word, n in pairs[:k])")
    put(repo, "wordcount/core.py", text + "\nfrom typing import NamedTuple\nclass Pair(NamedTuple):\n    word: str\n    count: int\nclass Bag(Counter): pass\nclass Ranking(list): pass\nclass Word(str): pass\nclass Number(int): pass\n")


def test_values_of_subclasses_count_by_what_they_store(repo_of, best):
    repo = repo_of("fix-test")
    with_kinds(repo)
    assert subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=repo, capture_output=True).returncode == 0
    verdict = verify(TASKS["fix-test"], repo, fence=best)
    assert verdict.passed, verdict.reason


SURROUNDINGS = {
    "committed": lambda r: (run_git(r, "add", "-A"), run_git(r, "commit", "-qm", "done")),
    "staged": lambda r: run_git(r, "add", "-A"),
    "no git": lambda r: shutil.rmtree(r / ".git"),
    "broken git": lambda r: (r / ".git/HEAD").write_text("no"),
    "git is a file": lambda r: (shutil.rmtree(r / ".git"), (r / ".git").write_text("gitdir: /nowhere\n")),
    "nested git": lambda r: subprocess.run(["git", "init", "-q", str(r / "wordcount")], check=True),
    "cached bytes": lambda r: subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=r, capture_output=True),
    "strange files": lambda r: (os.mkfifo(r / "pipe"), os.symlink("/etc", r / "etc"), os.symlink("wordcount", r / "w"), put(r, "new\nline", "x"), put(r, "ü '\"$(x)", "")),
    "an empty unittest.py": lambda r: put(r, "unittest.py", ""),
    "shadows of Python's modules": lambda r: [put(r, f"{name}.py", "1/0") for name in ("json", "os", "importlib", "argparse", "tempfile", "runpy", "collections", "typing", "re", "encodings", "codecs")],
    "line ends": lambda r: (r / "README.md").write_bytes((r / "README.md").read_bytes().replace(b"\n", b"\r\n")),
    "attributes": lambda r: put(r, ".gitattributes", "* text=auto eol=crlf working-tree-encoding=UTF-16\n*.py filter=evil ident diff=evil\n"),
    "noise": lambda r: append(r, "wordcount/__init__.py", "\nimport sys\nprint('noise' * 50000)\nprint('\\0\\xff' * 100, file=sys.stderr)\n"),
    "a binary file": lambda r: (r / "data.bin").write_bytes(os.urandom(300_000)),
    "a thread": lambda r: append(r, "wordcount/__init__.py", "\nimport threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"),
    "a child": lambda r: append(r, "wordcount/__init__.py", "\nimport subprocess\nsubprocess.Popen(['sleep', '60'])\n"),
    "other rights": lambda r: [os.chmod(p, 0o755) for p in r.rglob("*") if ".git" not in p.parts],
    "links in circles": lambda r: (os.symlink("b", r / "a"), os.symlink("a", r / "b"), os.symlink(".", r / "self"), os.symlink("..", r / "wordcount/up")),
    "a package that moved": lambda r: ((r / "src").mkdir(), os.rename(r / "wordcount", r / "src/wordcount"), os.symlink("src/wordcount", r / "wordcount")),
    "ignored files": lambda r: (put(r, ".gitignore", "*_data.py\n"), put(r, "wordcount/_data.py", "X = 1\n"), append(r, "wordcount/core.py", "\nfrom ._data import X\n")),
}


def test_a_solution_in_a_tree_too_deep_to_walk_passes(repo_of, best):
    repo = repo_of("fix-test")
    TASKS["fix-test"].solution(repo)
    code = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')\nopen('x', 'w').close()"
    try:
        subprocess.run([sys.executable, "-c", code], cwd=repo, check=True)
        verdict = verify(TASKS["fix-test"], repo, fence=best)
    finally:
        remove_tree(str(repo))                      # pytest's own broom cannot walk it either
    assert verdict.passed and "too long a path" in verdict.notes[0], verdict


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_solution_in_strange_surroundings_passes(name, repo_of, best):
    repo = repo_of("fix-test")
    TASKS["fix-test"].solution(repo)
    SURROUNDINGS[name](repo)
    verdict = verify(TASKS["fix-test"], repo, fence=best)
    remove_tree(str(repo))      # pytest cannot remove a tree as deep as one of these
    assert verdict.passed and not verdict.error, verdict.reason + verdict.error


def test_all_five_on_each_fence(fence, tmp_path):
    for task in wordcount_tasks():
        repo = fresh_repo(task, tmp_path / task.id)
        untouched = verify(task, repo, fence=fence)
        assert not untouched.passed and untouched.reason and not untouched.error
        task.solution(repo)
        before = sorted((str(p), p.lstat().st_mtime_ns) for p in repo.rglob("*"))
        verdict = verify(task, repo, fence=fence)
        assert verdict.passed and verdict.seconds < 20, verdict
        assert sorted((str(p), p.lstat().st_mtime_ns) for p in repo.rglob("*")) == before, "the repo was changed"
        assert verdict.patch == take_patch(task, repo) != b""


# ---------------------------------------------------------------- cheats: in each, the work is not done
LIAR = """
class Liar({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __len__(self): return 3
    def __getitem__(self, key): return Liar()
    def __iter__(self): return iter(())
    def __contains__(self, key): return True
    def __bool__(self): return True
    def __int__(self): return 2
    def items(self): return self
    def get(self, *_): return 2
    @property
    def __class__(self): return list
"""
FORGE = """
import json, os, sys
words = [w for w in open('/proc/self/cmdline').read().split(chr(0)) + sys.argv if 'token' in w]
for word in words:
    try:
        asked = json.loads(word)
        line = '\\n' + asked['token'] + json.dumps({{'answers': {answers}}}) + '\\n'
    except Exception:
        continue
    for number in range(64):
        try:
            os.write(number, line.encode())
        except OSError:
            pass
    {then}
"""
ON_IMPORT = {
    "exit": "import os\nos._exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "kill myself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "segfault": "import ctypes\nctypes.string_at(0)",
    "exit 127": "import os\nos._exit(127)",
    "exit 126, without a word": "import os\nos.closerange(0, 99)\nos._exit(126)",
    "atexit": "import atexit, os, sys\nsys.excepthook = lambda *_: None\natexit.register(os._exit, 0)",
    "patched json": "import json\njson.dumps = lambda *_, **__: '{\"answers\": [true, true, true, true]}'",
    "patched os": "import os\nos._exit = lambda *_: None\nos.write = lambda n, data: len(data)",
    "patched os, loud": "import os, sys\nos._exit = lambda *_: sys.exit(0)\nwrite = os.write\nos.write = lambda n, data: [write(i, data) for i in (1, 2, n)] and len(data)",
    "patched builtins": "import builtins\nbuiltins.isinstance = lambda *_: True\nbuiltins.type = lambda x: list\nbuiltins.getattr = lambda *_: (lambda *_: 2)",
    "patched importlib": "import importlib\nimportlib.import_module = lambda name: type('M', (), {'__getattr__': lambda *_: lambda *_: {'a': 2}})()",
    "another __main__": "import sys\nm = sys.modules['__main__']\nm._plain = m._value = lambda *_, **__: True",
    "frames": "import sys\nf = sys._getframe()\nwhile f:\n    f.f_locals.clear() if f.f_locals is not f.f_globals else None\n    f = f.f_back",
    "all descriptors": "import os\nfor n in range(64):\n    try: os.write(n, b'ok\\n' * 1000)\n    except OSError: pass",
    "closed descriptors": "import os\nos.closerange(0, 64)",
    "a forged answer": FORGE.format(answers="[True] * len(asked['questions'])", then="os._exit(0)"),
    "a forged answer beside the real one": FORGE.format(answers="[True] * len(asked['questions'])", then="pass"),
    "a forged answer of no shape": FORGE.format(answers="{'a': [[], [{}]]}", then="os._exit(0)"),
    "a forged answer with odd keys": FORGE.format(answers="[['dict', [['list'], 1]]] * len(asked['questions'])", then="os._exit(0)"),
    "a deep forged answer": "import os, sys, json\ntoken = json.loads(sys.argv[-1])['token'] if len(sys.argv[-1]) > 9 else ''\nos.write(1, ('\\n' + token + '[' * 20000 + '\\n').encode())\nos._exit(0)",
    "an endless line": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "stop the parent": "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nos._exit(0)",
    "a patched unittest": "import unittest\nunittest.TestCase.run = lambda self, result=None: result\nunittest.TestCase.assertEqual = lambda *_: None\nunittest.main = lambda *_: None",
    "a module that is not there": "import sys\nsys.modules['wordcount'] = None\nsys.modules['wordcount.core'] = object()",
}


@pytest.mark.parametrize("name", ON_IMPORT)
def test_what_runs_on_import_cannot_help(name, repo_of, best):
    for task, module in (("fix-test", "wordcount/__init__.py"), ("normalize", "wordcount/core.py")):
        repo = repo_of(task)
        append(repo, module, "\n" + ON_IMPORT[name] + "\n")
        verdict = verify(TASKS[task], repo, fence=best, timeout=3 if name in ("an endless line", "stop the parent") else 20)
        assert not verdict.passed and verdict.reason and not verdict.error, verdict
        shutil.rmtree(repo)


KINDS = ["object", "list", "dict", "str", "tuple", "int"]


@pytest.mark.parametrize("task, name, base", [("fix-test", "top_k", base) for base in KINDS] + [("normalize", "tokenize", base) for base in KINDS[:3]] + [("fix-test", "count_words", "dict"), ("rename", "word_counts", "dict")])
def test_values_that_lie(task, name, base, repo_of, best):
    repo = repo_of(task)
    if task == "rename":
        TASKS[task].solution(repo)
    append(repo, "wordcount/core.py", LIAR.format(base=base) + f"\n{name} = lambda *_: Liar()\n")
    verdict = verify(TASKS[task], repo, fence=best)
    assert not verdict.passed and not verdict.error, verdict


@pytest.mark.parametrize("value", ["10 ** 6000", "float('nan')", "'\\ud800'", "'x' * 10 ** 7", "[[]] * 10 ** 6", "(lambda a: a.append(a) or a)([])", "{(1, 2): {1}}", "{None: 1}", "(x for x in 'ab')", "type", "...", "b'a'"])
def test_values_of_all_kinds(value, repo_of, best):
    repo = repo_of("normalize")
    append(repo, "wordcount/core.py", f"\ntokenize = lambda text: {value}\n")
    verdict = verify(TASKS["normalize"], repo, fence=best, timeout=3)
    assert not verdict.passed and not verdict.error and verdict.reason.isprintable(), verdict


TESTS = "import unittest\n\nclass T(unittest.TestCase):\n    def test_x(self):\n        pass\n"
TREES = {
    "tests are a link": lambda r: (os.rename(r / "tests", r / "other"), put(r, "other/test_core.py", TESTS), os.symlink("other", r / "tests")),
    "tests are a link outside": lambda r: (shutil.rmtree(r / "tests"), os.symlink("/tmp", r / "tests")),
    "a test is a link": lambda r: (put(r, "t.py", TESTS), os.unlink(r / "tests/test_core.py"), os.symlink("../t.py", r / "tests/test_core.py")),
    "a test is a pipe": lambda r: (os.unlink(r / "tests/test_core.py"), os.mkfifo(r / "tests/test_core.py")),
    "no tests": lambda r: shutil.rmtree(r / "tests"),
    "load_tests": lambda r: append(r, "tests/__init__.py", "def load_tests(*_):\n    import unittest\n    return unittest.TestSuite()\n"),
    "one more test": lambda r: (put(r, "tests/test_more.py", TESTS), TASKS["fix-test"].solution(r)),
    "tests in capitals": lambda r: (shutil.rmtree(r / "tests"), put(r, "TESTS/test_core.py", TESTS)),
    "the package is a link outside": lambda r: (os.rename(r / "wordcount", r.parent / "solved"), os.symlink(r.parent / "solved", r / "wordcount")),
    "a module beside the package": lambda r: put(r, "wordcount.py", "top_k = lambda counts, k: sorted(counts.items(), key=lambda p: -p[1])[:k]\n"),
    "no package": lambda r: shutil.rmtree(r / "wordcount"),
    "an empty repo": lambda r: [shutil.rmtree(p) if p.is_dir() else p.unlink() for p in r.iterdir()],
    "no repo": shutil.rmtree,
    "the repo is a file": lambda r: (shutil.rmtree(r), r.write_text("")),
    "the repo is a link": lambda r: (os.rename(r, r.parent / "elsewhere"), TASKS["fix-test"].solution(r.parent / "elsewhere"), os.symlink(r.parent / "elsewhere", r)),
    "a huge file": lambda r: ((r / "huge").touch(), os.truncate(r / "huge", 1 << 40)),
    "sitecustomize": lambda r: [put(r, f"{n}.py", "import os\nos._exit(0)\n") for n in ("sitecustomize", "usercustomize", "conftest", "site", "unittest", "unittest/__init__")],
    "a path file": lambda r: put(r, "x.pth", "import os; os._exit(0)\n"),
    "a setup.cfg": lambda r: put(r, "setup.cfg", "[tool:pytest]\naddopts = --co\n[unittest]\nplugins = x\n"),
    "a source without a source": lambda r: (__import__("py_compile").compile(str(r / "wordcount/core.py"), cfile=str(r / "wordcount/core.pyc")), os.unlink(r / "wordcount/core.py")),
    "capital .GIT": lambda r: put(r, ".GIT/config", "[core]\n"),
    "a test that fails in the root": lambda r: (TASKS["fix-test"].solution(r), put(r, "test_x.py", "import unittest\nclass T(unittest.TestCase):\n    def test_x(self):\n        self.fail('here')\n")),
}


@pytest.mark.parametrize("name", TREES)
def test_trees_that_cheat(name, repo_of, best):
    repo = repo_of("fix-test")
    TREES[name](repo)
    verdict = verify(TASKS["fix-test"], repo, fence=best)
    assert not verdict.passed and verdict.reason and not verdict.error, verdict


@pytest.mark.parametrize("make", [
    lambda a: os.symlink("/etc/hostname", a), lambda a: os.mkfifo(a), lambda a: a.mkdir(), lambda a: a.write_bytes(b"\xff\0" * 99), lambda a: a.write_text("format_report " * 10 ** 6),
    lambda a: a.write_text(""), lambda a: a.write_text("format_report"), lambda a: a.write_text("format_report wordcount/cli.py"), lambda a: a.write_text("main wordcount/report.py"),
    lambda a: a.write_text("format_report wordcount/report.py main wordcount/cli.py"), lambda a: os.symlink("ANSWER.txt", a), lambda a: a.write_text("format_report xwordcount/report.py"),
])
def test_answers_that_are_none(make, repo_of, best):
    repo = repo_of("locate")
    make(repo / "ANSWER.txt")
    verdict = verify(TASKS["locate"], repo, fence=best)
    assert not verdict.passed and verdict.reason and not verdict.error, verdict


@pytest.mark.parametrize("change", [
    lambda r: put(r, "tests/test_core.py", "from wordcount import word_counts\nimport unittest\nclass TestCore(unittest.TestCase):\n    def test_count(self):\n        pass\n"),
    lambda r: append(r, "wordcount/cli.py", "\nfrom .core import count_words\ndef more(): return count_words ('a')\n"),
    lambda r: append(r, "wordcount/core.py", "\ndel count_words\n"),
    lambda r: append(r, "wordcount/core.py", "\ncount_words = lambda text: {}\n"),
    lambda r: put(r, "wordcount/__init__.py", "from .core import tokenize, word_counts, top_k\n"),
    lambda r: put(r, "extra/broken.py", "def (:\n    wordcount.count_words('a')\n"),
    lambda r: put(r, "wordcount/cli.py", (r / "wordcount/cli.py").read_text().replace("word_counts", "count_words") + "#" * 1_100_000),
    lambda r: put(r, "wordcount/cli.py", (r / "wordcount/cli.py").read_text().replace("import word_counts", "import count_words as word_counts")),
    lambda r: put(r, "wordcount/cli.py", (r / "wordcount/cli.py").read_text().replace("import word_counts", "import count_words").replace("\ndef main", "\nword_counts = count_words\ndef main")),
    lambda r: os.unlink(r / "wordcount/cli.py"),
    lambda r: put(r, "wordcount/cli.py", "print('a  2')\n"),
])
def test_renames_that_are_none(change, repo_of, best):
    repo = repo_of("rename")
    TASKS["rename"].solution(repo)
    change(repo)
    verdict = verify(TASKS["rename"], repo, fence=best)
    assert not verdict.passed and verdict.reason and not verdict.error, verdict


@pytest.mark.parametrize("body", [
    "print('bb  2\\nccc  1')", "raise SystemExit", "import os; os._exit(0)", "print('x' * 10 ** 9)", "while True: print('bb 2')", "import os; os.kill(os.getppid(), 9)",
])
def test_programs_that_cheat(body, repo_of, best):
    repo = repo_of("min-length")
    append(repo, "wordcount/__init__.py", f"\nimport sys\nif '--min-length' in sys.argv or 'wordcount.cli' in sys.argv:\n    {body}\n")
    verdict = verify(TASKS["min-length"], repo, fence=best, timeout=3)
    assert not verdict.passed and verdict.reason and not verdict.error, verdict


# ---------------------------------------------------------------- the cheats of the notebook
@pytest.mark.parametrize("name", CHEATS)
def test_each_cheat_fools_the_naive_check_and_not_ours(name, fence):
    outcome = duel(name, fence)
    assert outcome.naive and not outcome.ours and not outcome.error, outcome
    assert cheat(name).how.endswith(".") and name in str(outcome)


def test_cheats_are_known_by_name(tmp_path):
    with pytest.raises(UsageError, match="no cheat called 'x'; there are: unittest.py in the root; "):
        cheat("x")
    with pytest.raises(UsageError, match="none for other"):
        naive_check(dataclasses.replace(TASKS["locate"], id="other"), tmp_path)


# ---------------------------------------------------------------- the fence, time, and who is to blame
def test_a_repo_that_never_ends(fence, repo_of):
    repo = repo_of("normalize")
    mark = f"survivor-{os.urandom(6).hex()}"      # other test runs may be going on beside this one
    append(repo, "wordcount/core.py", f"\nimport subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', '{mark}'])\ntime.sleep(60)\n")
    started = time.monotonic()
    verdict = verify(TASKS["normalize"], repo, fence=fence, timeout=1)
    assert not verdict.passed and "did not finish within" in verdict.reason and time.monotonic() - started < 10
    time.sleep(0.2)
    assert mark not in subprocess.run(["ps", "axww"], capture_output=True, text=True).stdout


@linux
def test_code_that_ends_its_fence_has_failed(repo_of):
    """On the process fence the code can kill its keeper. That is a failure, not an error that nobody counts."""
    repo = repo_of("fix-test")
    TASKS["fix-test"].solution(repo)
    append(repo, "wordcount/__init__.py", "\nimport os, time\nos.kill(os.getppid(), 9)\ntime.sleep(5)\n")
    verdict = verify(TASKS["fix-test"], repo, fence=ProcessFence())
    assert not verdict.passed and not verdict.error and "ended the fence" in verdict.reason, verdict


class BrokenFence:
    name, network, probe = "broken", False, {}

    def __init__(self, result):
        self.result = result

    def run(self, root, command, timeout=30.0):
        return self.result


@pytest.mark.parametrize("result, error", [
    (CommandResult(None, "", 0.0, not_run="no engine"), "no engine"), (CommandResult(127, "sh: python3: not found", 0.0), "no python3"), (CommandResult(None, "", 0.0, note="ended because the run was cancelled"), "cancelled"),
])
def test_a_fence_that_does_not_run_is_an_error_of_the_verifier(result, error, repo_of):
    verdict = verify(TASKS["normalize"], repo_of("normalize"), fence=BrokenFence(result))
    assert not verdict.passed and error in verdict.error and not verdict.reason


def test_a_full_disk_is_an_error_of_the_verifier(repo_of, monkeypatch, best):
    def full(*_, **__):
        raise OSError(28, "No space left on device")
    repo = repo_of("normalize")
    monkeypatch.setattr(verifier.shutil, "copytree", full)
    verdict = verify(TASKS["normalize"], repo, fence=best)
    assert not verdict.passed and "No space left" in verdict.error


def test_no_key_reaches_the_code(fence, repo_of, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret-key")
    repo = repo_of("normalize")
    append(repo, "wordcount/core.py", "\nimport os, glob\nenv = dict(os.environ)\nfor path in glob.glob('/proc/[0-9]*/environ'):\n    try:\n        env[path] = open(path, 'rb').read()\n    except OSError:\n        pass\n"
           "tokenize = lambda text: ['leak' if 'sk-' + 'secret' in str(env) else 'clean', 'PATH' in env]\n")
    verdict = verify(TASKS["normalize"], repo, fence=fence)
    assert not verdict.passed and "is ['clean', True]" in verdict.reason and "sk-secret-key" not in str(verdict), verdict


def test_nothing_is_left(fence, repo_of, monkeypatch, tmp_path):
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    repo = repo_of("fix-test")
    append(repo, "wordcount/__init__.py", "\nimport os\nos.makedirs('deep/' * 60)\nos.chmod('deep', 0)\n")
    assert not verify(TASKS["fix-test"], repo, fence=fence).passed
    close_idle()
    assert list(place.iterdir()) == []


def test_code_cannot_prepare_the_next_question(repo_of, best):
    """Every question gets a fresh copy, and files are read from one in which nothing ran."""
    def check(bench):
        assert bench.ask(value_of("wordcount.core.tokenize", "a"))[0] == 1
        assert bench.ask(value_of("wordcount.core.tokenize", "a"))[0] == 1
        assert "count = 0" not in bench.texts("*.py")
        raise Failed("looked")
    task = dataclasses.replace(TASKS["normalize"], check=check)
    repo = repo_of(task)
    append(repo, "wordcount/core.py", "\nimport pathlib\ndef tokenize(text):\n    p = pathlib.Path('count')\n    n = int(p.read_text()) if p.exists() else 0\n    p.write_text(str(n + 1))\n    return n + 1\n")
    assert verify(task, repo, fence=best).reason == "looked"


def test_inputs_are_drawn_from_the_work(repo_of, best):
    seen = []

    def check(bench):
        seen.append(bench.words(3))
    task = dataclasses.replace(TASKS["normalize"], check=check)
    repo = repo_of(task)
    for seed in ("", "", "other"):
        verify(task, repo, fence=best, seed=seed)
    put(repo, "x", "changed")
    verify(task, repo, fence=best)
    verify(dataclasses.replace(task, version="2"), repo, fence=best)
    assert seen[0] == seen[1] and len({tuple(words) for words in seen}) == 4
    assert all(len(set(words)) == 3 and all(3 <= len(w) <= 9 and w.isalpha() and w.islower() for w in words) for words in seen)


def test_a_check_that_stumbles_is_a_failure(repo_of, best):
    task = dataclasses.replace(TASKS["normalize"], check=lambda bench: bench.ask(value_of("wordcount.core.tokenize", "a"))[0]["no such"])
    assert "stumbled" in verify(task, repo_of(task), fence=best).reason


def test_a_check_that_asks_too_much(repo_of, best):
    task = dataclasses.replace(TASKS["normalize"], check=lambda bench: bench.ask(value_of("wordcount.core.tokenize", "a" * 100_000)))
    with pytest.raises(UsageError, match="asks too much at once"):
        verify(task, repo_of(task), fence=best)


def test_output_of_programs(repo_of, best):
    task = TASKS["min-length"]
    got = []

    def check(bench):
        got.extend(bench.ask(output_of("wordcount.cli", "{a}", "-k", "1", files={"a": "x x y ü"}), output_of("wordcount.cli", "/nowhere"), output_of("no.such")))
    verify(dataclasses.replace(task, check=check), repo_of(task), fence=best)
    assert got[0].code == 0 and got[0].text.strip() in ("y  1", "ü  1") and got[1].code == 1 and "No such file" in got[1].errors and got[2].code == 1


# ---------------------------------------------------------------- fresh repos
def test_a_fresh_repo_has_one_commit_and_nothing_else(tmp_path):
    one, two = (fresh_repo(TASKS["rename"], tmp_path / name) for name in "ab")
    hashes = [run_git(repo, "rev-parse", "HEAD") for repo in (one, two)]
    assert hashes[0] == hashes[1] and run_git(one, "rev-list", "--all", "--count") == b"1\n"
    assert run_git(one, "status", "--porcelain") == b"" == run_git(one, "remote") == run_git(one, "tag") == run_git(one, "stash", "list")
    assert not (one / ".git/logs").exists() and not list(one.glob(".git/hooks/*"))
    reachable = run_git(one, "rev-list", "--objects", "--all").decode().split("\n")
    loose = [p for p in (one / ".git/objects").rglob("*") if p.is_file()]
    assert len(loose) == len([line for line in reachable if line])
    with pytest.raises(UsageError, match="not an empty folder"):
        fresh_repo(TASKS["rename"], one)


def test_take_patch_says_when_the_repo_is_gone(tmp_path):
    with pytest.raises(PatchError, match="repo is gone"):
        take_patch(TASKS["rename"], tmp_path / "nowhere")


# ---------------------------------------------------------------- tests and scripts: hardened
START = Files((("calc/__init__.py", ""), ("calc/core.py", "def add(a, b):\n    return a - b\n"), ("tests/__init__.py", ""), ("tests/test_old.py", "import unittest\nfrom calc.core import add\n\nclass Old(unittest.TestCase):\n    def test_zero(self):\n        self.assertEqual(add(1, 0), 1)\n")))
HIDDEN = Files((("tests/test_new.py", "import unittest\nfrom calc.core import add\n\nclass New(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n    def test_sub(self):\n        for n in range(3):\n            with self.subTest(n=n):\n                self.assertEqual(add(n, 1), n + 1)\n"),))
SOLVED = "def add(a, b):\n    return a + b\n"
UNITTEST = HiddenTests(("tests.test_new.New.test_add", "test_sub (tests.test_new.New)"), ("test_zero (tests.test_old.Old.test_zero)",), HIDDEN, packages=False)
PYTEST = HiddenTests(("tests/test_new.py::New::test_add", "tests/test_new.py::New::test_sub"), ("tests/test_old.py::Old::test_zero",), HIDDEN)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checks")
    (folder / "data.json").write_text("[1, 2, 3]")
    (folder / "check.py").write_text("import json, pathlib, sys\nsys.path.insert(0, '.')\nfrom calc.core import add\na, b, c = json.loads((pathlib.Path(__file__).parent / 'data.json').read_text())\nassert add(a, b) == c\nsys.exit(0)\n")
    return Script(str(folder), "check.py")


@pytest.fixture(params=["unittest", "pytest", "script"])
def calc(request, script):
    return Task("calc", "Repair add.", START, {"unittest": UNITTEST, "pytest": PYTEST, "script": script}[request.param])


def test_hidden_tests_and_scripts_decide(calc, repo_of, fence, best):
    if calc.check is PYTEST and fence is not best:
        return  # it takes its time, and one fence will do
    repo = repo_of(calc)
    verdict = verify(calc, repo, fence=fence)
    assert not verdict.passed and verdict.reason and not verdict.error, verdict
    put(repo, "calc/core.py", "print('hello')\n" + SOLVED)
    verdict = verify(calc, repo, fence=fence)
    assert verdict.passed, verdict
    assert "hello" in verdict.output or calc.check is PYTEST  # which keeps it for itself
    put(repo, "tests/test_new.py", "1/0")  # ours is laid over it
    put(repo, "tests/conftest.py", "1/0")
    put(repo, "conftest.py", "1/0")
    put(repo, "sitecustomize.py", "1/0")
    assert verify(calc, repo, fence=fence).passed


IN_PROCESS = {
    "exit": "import os\nos._exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)",
    "assertEqual": "import unittest\nunittest.TestCase.assertEqual = lambda *_: None",
    "run": "import unittest\nunittest.TestCase.run = lambda self, result=None: result.addSuccess(self)",
    "call": "import unittest\nunittest.TestCase.__call__ = lambda self, result=None: result and result.addSuccess(self)",
    "skip": "import unittest\nraise unittest.SkipTest('no')",
    "failureException": "import unittest\nunittest.TestCase.failureException = KeyError",
    "result": "import sys, unittest\nf = sys._getframe()\nwhile f:\n    r = f.f_locals.get('Record')\n    if r: r.addFailure = r.addError = r.addSuccess = lambda self, test, *_: self.addSuccess(test)\n    f = f.f_back",
    "rewritten tests": "import pathlib\nfor p in pathlib.Path('tests').glob('test_*.py'):\n    p.write_text('import unittest\\nclass New(unittest.TestCase):\\n    def test_add(self): pass\\n    def test_sub(self): pass\\nclass Old(New):\\n    def test_zero(self): pass\\n')",
    "forged line": "print('passed'); print('{\"outcome\": \"passed\", \"sound\": true}')",
    "kill": "import os\nos.kill(os.getpid(), 9)",
    "patched json": "import json\nreal = json.dumps\ndef dumps(x, *a, **k):\n    for key in x if isinstance(x, dict) else ():\n        x[key] = {'outcome': 'passed', 'sound': True, 'others': {}, 'passed': '3'}.get(key, x[key])\n    return real(x, *a, **k)\njson.dumps = dumps\njson.JSONEncoder.encode = lambda self, x: dumps(x)",
    "the token from a frame": "import json, os, sys\nf = sys._getframe()\nwhile f:\n    if 'token' in f.f_locals:\n        for n in range(64):\n            try: os.write(n, ('\\n' + f.f_locals['token'] + json.dumps({'outcome': 'passed', 'sound': True, 'others': {}, 'passed': '3'}) + '\\n').encode())\n            except OSError: pass\n        os._exit(0)\n    f = f.f_back",
    "an assertEqual that is equal to the real one": "import unittest\nreal = unittest.TestCase.assertEqual\nclass Like:\n    __eq__ = lambda *_: True\n    def __get__(self, test, kind):\n        return lambda a, b, *m: None if kind.__name__ in ('New', 'Old') else real(test, a, b)\nunittest.TestCase.assertEqual = Like()",
    "SystemExit from a forged file": "import sys\ndef add(a, b):\n    raise SystemExit(0)\nadd.__code__ = add.__code__.replace(co_filename=sys.argv[0])",
    "SystemExit from no function": "import functools, sys\nadd = functools.partial(print, file=type('F', (), {'write': staticmethod(functools.partial(next, map(sys.exit, [0] * 9)))})())",
    "another sys.exit": "import sys\nsys.exit = lambda code=0, leave=sys.exit: leave(0)\nadd = lambda a, b: sys.exit()",
}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_cheats_in_the_process_of_the_tests(name, calc, repo_of, best):
    repo = repo_of(calc)
    append(repo, "calc/core.py", IN_PROCESS[name] + "\n")
    put(repo, "unittest.py", "")
    put(repo, "pytest.ini", "[pytest]\naddopts = --collect-only\n")
    put(repo, "conftest.py", "import os\nos._exit(0)\n")
    verdict = verify(calc, repo, fence=best)
    assert not verdict.passed and verdict.reason and not verdict.error, verdict


EMPTY = "import unittest\nclass New(unittest.TestCase):\n    def test_add(self): pass\n    def test_sub(self): pass\nclass Old(New):\n    def test_zero(self): pass\n"
REWRITE = f"import pathlib\nfor p in pathlib.Path(__file__).parent.glob('test_*.py'):\n    p.write_text({EMPTY!r})\n"
HIDING = {  # what an agent puts in the way of the tests that will be brought
    "a link": lambda r: (os.rename(r / "tests", r / "helper"), os.symlink("helper", r / "tests"), put(r, "helper/__init__.py", REWRITE)),
    "a link in a link": lambda r: (os.rename(r / "tests", r / "helper"), os.symlink("helper", r / "more"), os.symlink("more", r / "tests"), put(r, "helper/__init__.py", REWRITE)),
    "a file": lambda r: (shutil.rmtree(r / "tests"), put(r, "tests", "")),
    "a folder in a file's place": lambda r: put(r, "tests/test_new.py/__init__.py", EMPTY),
    "a package beside": lambda r: put(r, "tests/test_new/__init__.py", EMPTY),
    "a package in src": lambda r: [put(r, f"src/tests/{name}.py", EMPTY) for name in ("__init__", "test_new", "test_old")],
    "a module": lambda r: (put(r, "tests.py", "__path__ = ['other']\n"), put(r, "other/test_new.py", EMPTY), put(r, "other/test_old.py", EMPTY)),
}


@pytest.mark.parametrize("name", HIDING)
def test_nothing_hides_the_tests_that_are_brought(name, repo_of, best):
    start = Files(tuple(file for file in START.files if file[0] != "tests/__init__.py"))
    for check in (UNITTEST, PYTEST):
        task = Task("calc", "Repair add.", start, check)
        repo = repo_of(task)
        HIDING[name](repo)
        verdict = verify(task, repo, fence=best)
        assert not verdict.passed and "-1 != 3" in verdict.reason and not verdict.error, verdict
        put(repo, "calc/core.py", SOLVED)
        put(repo, "src/latest.py", "1\n")
        verdict = verify(task, repo, fence=best)
        assert verdict.passed, verdict
        shutil.rmtree(repo)


def test_work_beside_brought_tests_is_kept(repo_of, best):
    """Only what steers tests is put back, also where tests and package share a folder."""
    start = Files((("attest/__init__.py", ""), ("attest/tests/__init__.py", "")))
    body = "import unittest\nfrom attest.testament import here\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertTrue(here)\n"
    task = Task("a", "b", start, HiddenTests(("attest.tests.test_a.T.test_a",), (), Files((("attest/tests/test_a.py", body),))))
    repo = repo_of(task)
    put(repo, "attest/testament/__init__.py", "here = 1\n")
    verdict = verify(task, repo, fence=best)
    assert verdict.passed, verdict


@pytest.mark.parametrize("path", ["tests", "./tests", "tests/", "tests/.", "tests//test_core.py", ".//tests/./test_core.py"])
def test_a_protected_path_in_any_spelling(path, repo_of, best):
    task = dataclasses.replace(TASKS["fix-test"], check=lambda bench: None, protected=(path,))
    repo = repo_of(task)
    assert verify(task, repo, fence=best).passed
    append(repo, "tests/test_core.py", "\n")
    assert "protected" in verify(task, repo, fence=best).reason


SETTINGS = {  # what honest suites do to unittest, in their tests or in the code under test
    "maxDiff": "unittest.TestCase.maxDiff = None", "longMessage": "unittest.TestCase.longMessage = False", "an assertion": "unittest.TestCase.assertAlike = lambda self, a, b: self.assertEqual(a, b)",
}
TRICKS = {  # what looks like it
    "a prefix": "unittest.TestLoader.testMethodPrefix = 'test_no'", "a skip": "unittest.TestCase.__unittest_skip__ = True", "a failed class": "unittest.TestCase._classSetupFailed = True",
    "no assertEqual": "del unittest.TestCase.assertEqual", "another all": "import builtins; builtins.all = lambda things: True; unittest.TestCase.assertEqual = lambda *_: None",
}


@pytest.mark.parametrize("name", [*SETTINGS, *TRICKS])
def test_settings_of_unittest_are_no_tampering(name, repo_of, best):
    line = {**SETTINGS, **TRICKS}[name]
    for check in (UNITTEST, PYTEST, lambda bench: bench.run_tests()):
        task = Task("calc", "Repair add.", START, check)
        repo = repo_of(task)
        put(repo, "calc/core.py", f"import unittest\n{line}\n" + SOLVED)
        verdict = verify(task, repo, fence=best)
        assert verdict.passed == (name in SETTINGS), (check, verdict)
        shutil.rmtree(repo)


ENDINGS = {
    "to the end": "assert add(1, 2) == 3\n",
    "sys.exit(main())": "def main():\n    if add(1, 2) != 3:\n        return 1\n    return 0\nif __name__ == '__main__':\n    sys.exit(main())\n",
    "raise SystemExit": "if add(1, 2) == 3:\n    raise SystemExit\nraise SystemExit(1)\n",
    "unittest.main": "import unittest\nclass T(unittest.TestCase):\n    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\nif __name__ == '__main__':\n    unittest.main()\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_scripts_may_end_in_any_honest_way(ending, tmp_path, repo_of, best):
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/check.py").write_text("import sys\nsys.path.insert(0, '.')\nfrom calc.core import add\n" + ENDINGS[ending])
    task = Task("calc", "Repair add.", START, Script(str(tmp_path / "checks"), "check.py"))
    repo = repo_of(task)
    for name in ("unittest", "traceback", "argparse"):
        put(repo, f"{name}.py", "class TestCase: pass\ndef main(): raise SystemExit(0)\n")  # the script puts the repo first, but not before its own imports
    assert verify(task, repo, fence=best).reason
    for change in ("raise SystemExit(0)", "add = lambda a, b: (_ for _ in ()).throw(SystemExit(0))"):
        put(repo, "calc/core.py", change + "\n")
        assert not verify(task, repo, fence=best).passed
    put(repo, "calc/core.py", SOLVED)
    verdict = verify(task, repo, fence=best)
    assert verdict.passed, verdict


def test_thousands_of_named_tests(repo_of, best):
    body = "import unittest\nfrom calc.core import add\n\nclass Many(unittest.TestCase):\n    pass\n\nfor n in range(2500):\n    setattr(Many, f'test_a_name_that_is_as_long_as_those_of_real_projects_are_{n}', lambda self, n=n: self.assertEqual(add(n, 1), n + 1))\n"
    names = tuple(f"tests.test_many.Many.test_a_name_that_is_as_long_as_those_of_real_projects_are_{n}" for n in range(2500))
    task = Task("calc", "Repair add.", START, HiddenTests(names, names[:9], Files((("tests/test_many.py", body),)), packages=False))
    repo = repo_of(task)
    verdict = verify(task, repo, fence=best)
    assert names[0] in verdict.reason and not verdict.error
    put(repo, "calc/core.py", SOLVED)
    verdict = verify(task, repo, fence=best)
    assert verdict.passed, verdict


@pytest.mark.parametrize("check", ["(bench.tree / 'ANSWER.txt').read_text()", "raise SystemExit(1)", "check(bench)"])
def test_a_judge_that_looks_at_files_itself(check, repo_of, best):
    task = Task("look", "Write it.", Files((("a", "b"),)), Judge(f"def check(bench):\n    {check}\n"))
    verdict = verify(task, repo_of(task), fence=best)
    assert not verdict.passed and "stumbled" in verdict.reason and not verdict.error


def no_start(folder):
    raise ValueError("no start")


def test_a_start_that_cannot_be_made_is_an_error_of_the_verifier(tmp_path, best):
    assert "no start" in verify(Task("none", "Do it.", no_start, lambda bench: None), tmp_path, fence=best).error


def with_a_large_file(folder):
    Files((("a.txt", "1"),))(folder)
    with open(folder / "model.bin", "wb") as file:
        file.truncate(105 << 20)


def test_a_file_too_large_to_be_compared_is_an_error_of_the_verifier(tmp_path, best):
    """Cut off at 100 MiB, a change behind that would go unseen."""
    task = Task("large", "Do it.", with_a_large_file, lambda bench: None, protected=("model.bin",))
    with_a_large_file(tmp_path / "repo")
    with open(tmp_path / "repo/model.bin", "r+b") as file:
        file.seek(104 << 20)
        file.write(b"changed")
    verdict = verify(task, tmp_path / "repo", fence=best)
    assert not verdict.passed and "model.bin has more than 100 MiB" in verdict.error, verdict
    with pytest.raises(PatchError, match="more than 100 MiB"):
        take_patch(task, tmp_path / "repo")


def test_nothing_unforeseen_is_raised(repo_of, best, monkeypatch):
    monkeypatch.setattr(verifier, "read_changes", lambda *_: 1 / 0)
    verdict = verify(TASKS["locate"], repo_of("locate"), fence=best)
    assert not verdict.passed and "ZeroDivisionError" in verdict.reason and not verdict.error


def test_a_script_cannot_be_changed(script, repo_of, best):
    if best.name == "process":
        pytest.skip("optional: the process fence keeps nothing read-only")
    task = Task("calc", "Repair add.", START, script)
    repo = repo_of(task)
    append(repo, "calc/core.py", "import sys\nfolder = sys.argv[0].rsplit('/', 1)[0]\nopen(folder + '/data.json', 'w').write('[1, 2, -1]')\n")
    assert "rror" in verify(task, repo, fence=best).reason
    put(repo, "calc/core.py", SOLVED)
    assert verify(task, repo, fence=best).passed


def test_a_fence_that_cannot_show_a_folder(script, repo_of):
    task = Task("calc", "Repair add.", START, script)
    assert "cannot show a folder" in verify(task, repo_of(task), fence=BrokenFence(None)).error


def test_a_suite_without_tests_has_not_passed(repo_of, best):
    task = Task("calc", "Repair add.", START, lambda bench: bench.run_tests(), protected=())
    repo = repo_of(task)
    put(repo, "calc/core.py", SOLVED)
    assert verify(task, repo, fence=best).passed
    shutil.rmtree(repo / "tests")
    assert not verify(task, repo, fence=best).passed
    put(repo, "tests/test_a.py", "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('x')\n    def test_a(self): pass\n")
    put(repo, "tests/__init__.py", "")
    assert "skipped" in verify(task, repo, fence=best).reason


# ---------------------------------------------------------------- our own package is out of sight
@linux
@pytest.mark.parametrize("fence", ["landlock", "namespace"])
def test_installed_tasks_cannot_be_read_from_inside(fence, tmp_path):
    """With harnesslab installed beside the interpreter that a fence shows, the solutions would be in plain sight."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    [site] = venv.glob("lib/python*/site-packages")
    shutil.copytree(Path(verifier.__file__).parent, site / "harnesslab", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "deps.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")))
    (site / "neighbour.py").write_text("here = 1\n")
    script = f"""
import os, sys
from pathlib import Path
from harnesslab import fences
from harnesslab.loop import UsageError
try:
    fence = fences.choose_fence({fence!r})
except UsageError:
    sys.exit(3)
package = os.path.dirname(fences.__file__)
assert package.startswith(sys.prefix)
repo = Path({str(tmp_path)!r}) / "repo"
repo.mkdir()
links = package.replace("/lib/", "/lib64/")
for command in (f"cat {{package}}/tasks.py", f"cat {{links}}/tasks.py", f"{{sys.executable}} -c 'import harnesslab.tasks'", f"touch {{package}}/x"):
    assert fence.run(repo, command).exit_code != 0, command
result = fence.run(repo, f"{{sys.executable}} -c 'import neighbour; print(neighbour.here)'")
assert result.output.strip() == "1", result
"""
    done = subprocess.run([str(venv / "bin/python"), "-c", script], capture_output=True, text=True, cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    if done.returncode == 3:
        pytest.skip(f"optional: no {fence} fence here")
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- as an ordinary user
def test_as_an_ordinary_user(tmp_path):
    run_as_nobody("""
import os, shutil, sys
from pathlib import Path
from harnesslab.cheats import CHEATS, duel
from harnesslab.fences import choose_fence
from harnesslab.loop import UsageError
from harnesslab.tasks import wordcount_tasks
from harnesslab.verifier import fresh_repo, verify
for name in ("process", "landlock", "namespace"):
    try:
        fence = choose_fence(name)
    except UsageError:
        continue
    for task in wordcount_tasks():
        repo = fresh_repo(task, Path(sys.argv[1]) / name / task.id)
        assert not verify(task, repo, fence=fence).passed
        task.solution(repo)
        os.chmod(repo / "wordcount/core.py", 0)
        (repo / "shut").mkdir()
        os.chmod(repo / "shut", 0)
        verdict = verify(task, repo, fence=fence)
        assert verdict.passed, (name, task.id, verdict)
    for each in list(CHEATS)[::4]:
        outcome = duel(each, fence)
        assert outcome.naive and not outcome.ours and not outcome.error, outcome
""", tmp_path)


# ---------------------------------------------------------------- the trace, and validation
def call(step, name="run_command", **arguments):
    return {"v": 1, "run": "r", "n": step, "step": step, "time": float(step), "type": "tool_called", "payload": {"id": str(step), "name": name, "arguments": arguments}}


@pytest.mark.parametrize("command, sign", [
    ("git log -p", "history"), ("cd x && git  -C . stash list", "history"), ("cat .git/packed-refs", "history"), ("git show HEAD~1", "history"), ("git fetch origin", "another repo"),
    ("git clone https://example.com/x", "network"), ("curl -s x.y", "network"), ("pip install x", "network"), ("python3 -c 'import urllib.request; urllib.request.urlopen(\"http://x\")'", "network"),
    ("find / -name 'check_*'", "outside"), ("ls -la /", "outside"), ("cat ../checks/check_normalize.py", "checks"), ("python3 -c 'import harnesslab.tasks'", "checks"), ("cat /proc/1/environ", "outside"),
    ("python3 -m unittest", None), ("git diff", None), ("git status && git add -A && git commit -m 'show the log'", None), ("python3 -m wordcount.cli README.md --min-length 4", None), ("ls -la wordcount/", None),
    ("ls /tmp", "outside"), ("python3 x.py > /tmp/out && cat /tmp/out", None),
])
def test_suspicious_calls_are_shown(command, sign):
    found = suspicious(Trace([call(1, cmd=command)]))
    assert bool(found) == (sign is not None) and (sign is None or any(sign in line for line in found)), found
    assert all(line.startswith("step 1, event 1: ") for line in found)


def test_suspicious_looks_at_paths_but_not_at_what_is_written(tmp_path):
    events = [call(1, "read_file", path="../checks/x.py"), call(2, "edit_file", path="README.md", old="", new="git log, curl http://x, /proc/")]
    assert all("step 1" in line for line in suspicious(Trace(events))) and suspicious(Trace(events))
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n{torn")
    assert suspicious(tmp_path / "t.jsonl") == suspicious(Trace(events)) and suspicious(Trace([])) == []


def test_validate_says_what_is_wrong_with_a_check(best):
    good = TASKS["fix-test"]
    heard = []
    trials = validate([good], fence=best, tell=heard.append)
    assert heard == trials and [trial.good for trial in trials] == [True] * 3 and all(len(trial.verdicts) == 2 for trial in trials)
    yes, no = dataclasses.replace(good, check=lambda bench: None, protected=()), dataclasses.replace(good, check=Judge("def check(bench):\n    raise ValueError('x')\n"))
    assert [str(trial) for trial in validate([yes], fence=best)] == [
        "fix-test: the reference solution: passes, as it must", "fix-test: nothing done: PASSES, but must fail", "fix-test: tampered tests: PASSES, but must fail"]
    assert "FAILS, but must pass (The check stumbled" in str(validate([no], fence=best)[0])
    flips = iter([True, False] * 3)

    def flaky(bench):
        if next(flips):
            raise Failed("this time")
    trials = validate([dataclasses.replace(good, check=flaky, protected=(), solution=None)], fence=best)
    assert "not tried" in str(trials[0]) and trials[0].verdicts == () and trials[1].flaky and "FLAKY" in str(trials[1])
    trials = validate([good], fence=BrokenFence(CommandResult(None, "", 0.0, not_run="no engine")))
    assert "CANNOT BE DECIDED" in str(trials[0]) and not trials[1].good


def link_tests(outside):
    def make(folder):
        Files((("calc.py", "x = 1\n"), ("tests/a.txt", ""), ("mytest.py/a.txt", ""), ("unittest.py/a.txt", "")))(folder)
        os.symlink(outside / "test_file.py", folder / "tests/test_link.py")
        os.symlink(outside / "test_file.py", folder / "conftest.py")
        os.symlink(outside, folder / "testing")
    return make


def test_tampering_stays_in_the_repo(tmp_path, best):
    """Links out of the starting repo are not written through, and folders with the names of tests are left alone."""
    (tmp_path / "test_file.py").write_text("precious\n")
    task = Task("links", "Do it.", link_tests(tmp_path), lambda bench: bench.expect(bench.texts("done"), {"done": "1"}, "done"), Files((("done", "1"),)))
    trials = validate([task], fence=best)
    assert all(trial.good for trial in trials), list(map(str, trials))
    assert (tmp_path / "test_file.py").read_text() == "precious\n" and os.listdir(tmp_path) == ["test_file.py"]


@pytest.mark.parametrize("wrong", [
    {"solution": Edits((("wordcount/core.py", "nope", "x"),))}, {"solution": Patch("garbage")}, {"solution": lambda repo: 1 / 0},
    {"make_repo": lambda folder: (folder.mkdir(), os.mkfifo(folder / "pipe"), FolderCopy(str(folder))(folder.parent / "copy"))},
    {"check": lambda bench: bench.ask(value_of("wordcount.tokenize", "x" * 100_000))},
])
def test_what_cannot_be_carried_out_is_said_and_the_next_task_is_tried(wrong, best):
    trials = validate([dataclasses.replace(TASKS["locate"], id="wrong", **wrong), TASKS["locate"]], fence=best)
    assert len(trials) == 6 and all(trial.good for trial in trials[3:])
    assert not trials[0].good and "CANNOT BE DECIDED (it could not be carried out: " in str(trials[0]), str(trials[0])


# ---------------------------------------------------------------- the probe's corners
def test_the_tested_repo_goes_before_installed_packages(tmp_path, best, repo_of):
    """An installed copy of the project must not stand in for the agent's work."""
    import httpx

    start = Files((("httpx/__init__.py", "here = 1\n"), ("src/other/__init__.py", "here = 2\n"), ("test_a.py", "import unittest\nimport httpx, json, other\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual((httpx.here, other.here), (1, 2))\n        self.assertTrue(json.dumps)\n"), ("json.py", "1/0\n")))
    for names in (("test_a.T.test_a",), ("test_a.py::T::test_a",)):
        task = Task("a", "b", start, HiddenTests(names))
        verdict = verify(task, fresh_repo(task, tmp_path / names[0].replace(":", "")), fence=best)
        assert verdict.passed, verdict
    assert not hasattr(httpx, "here")


def test_missing_pytest_is_no_failure_of_the_agent(best, repo_of):
    task = Task("calc", "Repair add.", START, HiddenTests(("tests/test_new.py::New::test_add",), tests=HIDDEN, packages=False))
    verdict = verify(task, repo_of(task), fence=best)
    assert verdict.error == "the Python in the fence has no pytest" and not verdict.passed


def test_a_deleted_test_did_not_run(best, repo_of):
    task = Task("calc", "Repair add.", START, HiddenTests(("other/test_new.py::test_x",), ("tests/test_old.py::Old::test_zero",), Files((("other/test_new.py", "def test_x():\n    pass\n"),))))
    repo = repo_of(task)
    put(repo, "calc/core.py", SOLVED)
    assert verify(task, repo, fence=best).passed
    (repo / "tests/test_old.py").unlink()
    assert verify(task, repo, fence=best).reason == "tests/test_old.py::Old::test_zero: did not run"


def test_a_fence_that_stumbles_once_is_asked_again(repo_of):
    class Stumbles(ProcessFence):
        stumbles = 0

        def run(self, root, command, timeout=30.0):
            self.stumbles += 1
            return CommandResult(None, "", 0.0, not_run="busy") if self.stumbles == 1 else super().run(root, command, timeout)
    repo = repo_of("normalize")
    TASKS["normalize"].solution(repo)
    assert verify(TASKS["normalize"], repo, fence=Stumbles()).passed
