"""Every fence, attacked from inside. The evidence is taken outside; and every attack is first shown to work without a fence."""
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from harnesslab import fences, keeper
from harnesslab.fences import (ContainerFence, LandlockFence, NamespaceFence, ProcessFence, choose_fence, close_idle, describe, fence_facts, landlock_version,
                               probe_fence)
from harnesslab.loop import UsageError
from harnesslab.tools import ToolError

LINUX = sys.platform == "linux"
ENGINE, IMAGE = os.environ.get("HL_ENGINE", ""), os.environ.get("HL_IMAGE", fences.IMAGE)
WALLED = ["landlock", "namespace", "container"]


def get(name):
    """The fence, or a skip that says why there is none here."""
    try:
        return choose_fence(name, engine=ENGINE, image=IMAGE)
    except UsageError as error:
        pytest.skip(f"optional: {error}" if name == "container" or not LINUX else str(error))


@pytest.fixture(params=["process", *WALLED])
def fence(request):
    return get(request.param)


@pytest.fixture(params=WALLED)
def walled(request):
    return get(request.param)


@pytest.fixture
def repo(tmp_path):
    """tmp_path/repo is a git repository; tmp_path/outside holds a secret."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("the-secret")
    (tmp_path / "repo" / "file.txt").write_text("hello\n")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.com"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path / "repo", check=True, env=os.environ | {"GIT_CONFIG_NOSYSTEM": "1", "HOME": str(tmp_path)})
    yield tmp_path / "repo"
    close_idle()


def python(code):
    """A shell command that runs these lines of Python."""
    return "python3 -I -S -c '" + code.replace("'", '"') + "'"


def processes(word):
    return [line for line in subprocess.run(["ps", "-axo", "stat=,args="], capture_output=True, text=True).stdout.splitlines() if word in line and not line.startswith("Z")]


# ------------------------------------------------------------------ all fences alike
def test_ordinary_work(fence, repo):
    result = fence.run(repo, "cat file.txt; echo new > made.txt; printf oops >&2; exit 3")
    assert (result.exit_code, result.output, result.not_run, result.timed_out) == (3, "hello\noops", None, False)
    assert (repo / "made.txt").read_text() == "new\n"
    assert fence.run(repo, "python3 -c 'print(6 * 7)' && git status --short && t=$(mktemp) && echo ok > $t && cat $t").output == "42\n?? made.txt\nok\n"


def test_quotes_and_lines_reach_the_shell_as_they_are(fence, repo):
    assert fence.run(repo, "echo \"a  'b'\" '$HOME'\necho second; f() { echo \"$0|$#|$1\"; }; f 'x y'").output.endswith("a  'b' $HOME\nsecond\n/bin/sh|1|x y\n")


def test_time_limit_and_what_is_left(fence, repo):
    word = f"77{secrets.randbelow(10**9)}"
    for command in (f"echo before; sleep {word}", f"echo before; setsid sleep {word} & sleep {word}", f"echo before; trap '' TERM; yes {word}"):
        result = fence.run(repo, command, timeout=0.5)
        assert result.timed_out and result.exit_code is None and result.output.startswith("before\n"), result
        assert result.seconds < 4 and not processes(word)


def test_background_child_does_not_hold_the_call(fence, repo):
    word = f"77{secrets.randbelow(10**9)}"
    result = fence.run(repo, f"(setsid sleep {word} &) ; sleep {word} & echo up", timeout=20)
    assert result.exit_code == 0 and result.output == "up\n" and result.seconds < 5 and not processes(word)


def test_no_key_in_the_environment(fence, repo, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "canary-in-the-environment")
    assert "canary-in-the-environment" not in fence.run(repo, "env; set; cat /proc/self/environ").output


def test_bad_requests(fence, repo):
    for command, timeout in (("", 1), ("a\0b", 1), ("ls", 0), ("ls", float("nan"))):
        with pytest.raises(ToolError):
            fence.run(repo, command, timeout)
    with pytest.raises(UsageError):
        fence.run(repo / "no such folder", "ls")


def test_a_short_lived_thread_may_run_commands(fence, repo):
    """Nothing may be tied to the thread that happened to come first."""
    results = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: results.append(fence.run(repo, "sleep 0.1; echo fine")))
        thread.start()
        thread.join()
    results.append(fence.run(repo, "sleep 0.1; echo fine"))
    assert [result.output for result in results] == ["fine\n"] * 3


def test_a_new_folder_with_the_old_name(fence, repo):
    for turn in range(3):
        assert fence.run(repo, f"echo {turn} > turn; cat turn").output == f"{turn}\n"
        shutil.rmtree(repo)
        repo.mkdir()


def test_odd_folder_names(fence, tmp_path):
    for name in ("with space", "ünï", "-dash", "a:b", "quote'"):
        (tmp_path / name).mkdir()
        result = fence.run(tmp_path / name, "echo x > f; ls")
        assert result.output == "f\n" and (tmp_path / name / "f").exists(), (name, result)


# ------------------------------------------------------------------ attacks: each is (shell command, did it work?)
def attack(fence, repo, command, succeeded, timeout=10):
    """Run it without a wall first, to see that it is an attack at all; then inside."""
    ProcessFence().run(repo, command, timeout)
    assert succeeded(), "the attack does not even work without a fence"
    return lambda: fence.run(repo, command, timeout)


@pytest.mark.parametrize("command", ["echo x > ../outside/pwn", "echo x > {outside}/pwn", "ln -s {outside} link; echo x > link/pwn", "mv file.txt ../outside/pwn",
                                     "mkdir ../outside/pwn", "ln -s x ../outside/pwn", "mkfifo ../outside/pwn", "cd ..; cd outside; touch pwn",
                                     "mkdir d; cd d; python3 -c 'import os; os.rename(\"../file.txt\", \"../../outside/pwn\")'"])
def test_write_outside(walled, repo, command):
    outside, made = repo.parent / "outside", repo.parent / "outside" / "pwn"
    inside = attack(walled, repo, command.format(outside=outside), lambda: os.path.lexists(made))
    shutil.rmtree(made) if made.is_dir() and not made.is_symlink() else made.unlink()
    subprocess.run(["git", "checkout", "-q", "."], cwd=repo)
    shutil.rmtree(repo / "d", ignore_errors=True)
    (repo / "link").unlink(missing_ok=True)
    inside()
    assert not os.path.lexists(made)


@pytest.mark.parametrize("command", ["cat ../outside/secret", "cat {outside}/secret", "ln {outside}/secret hard; cat hard", "ln -s {outside}/secret soft; cat soft",
                                     "cat /proc/self/root{outside}/secret", "sh -c 'cat /proc/$PPID/root{outside}/secret; true'", "cp -r ../outside copy; cat copy/secret"])
def test_read_outside(walled, repo, command):
    command = command.format(outside=repo.parent / "outside")
    assert "the-secret" in ProcessFence().run(repo, command).output
    for left in ("hard", "soft", "copy"):
        subprocess.run(["rm", "-rf", str(repo / left)])
    assert "the-secret" not in walled.run(repo, command).output


@pytest.mark.parametrize("what", ["remove", "truncate", "overwrite"])
def test_destroy_outside(walled, repo, what):
    command = {"remove": "rm -rf ../outside ../outside/secret", "truncate": "truncate -s 0 ../outside/secret", "overwrite": "python3 -c 'open(\"../outside/secret\", \"r+\").write(\"X\")'"}[what]
    walled.run(repo, command)
    assert (repo.parent / "outside" / "secret").read_text() == "the-secret"


def test_mode_of_a_file_outside(walled, repo):
    """Landlock knows no modes. If this fails one day for landlock, rejoice, and correct `fence_facts`."""
    secret = repo.parent / "outside" / "secret"
    secret.chmod(0o600)
    walled.run(repo, f"chmod 644 {secret}")
    assert (secret.stat().st_mode & 0o777 == 0o600) == (walled.name != "landlock")


NETWORK = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM, "s.connect(('127.0.0.1', {port}))"),
    "udp": (socket.AF_INET, socket.SOCK_DGRAM, "s.sendto(b'x', ('127.0.0.1', {port}))"),
    "local socket": (getattr(socket, "AF_UNIX", None), socket.SOCK_STREAM, "s.connect('{path}')"),
    "abstract socket": (getattr(socket, "AF_UNIX", None), socket.SOCK_STREAM, "s.connect(chr(0) + '{path}')"),
}


@pytest.mark.parametrize("way", NETWORK)
def test_network(walled, repo, way):
    family, kind, code = NETWORK[way]
    folder = tempfile.mkdtemp(prefix="s", dir="/tmp")                # the path of a local socket must be short
    path = f"{folder}/s"
    listener = socket.socket(family, kind)
    listener.bind(("127.0.0.1", 0) if family == socket.AF_INET else path if way == "local socket" else "\0" + path)
    if kind == socket.SOCK_STREAM:
        listener.listen(4)
    listener.settimeout(0.3)
    port = listener.getsockname()[1] if family == socket.AF_INET else 0

    def visited():
        try:
            listener.recv(9) if kind == socket.SOCK_DGRAM else listener.accept()[0].close()
            return True
        except TimeoutError:
            return False
    command = python(f"import socket; s = socket.socket({int(family)}, {int(kind)}); {code.format(port=port, path=path)}")
    try:
        inside = attack(walled, repo, command, visited)
        inside()
        assert not visited()
    finally:
        listener.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("way", ["kill", "group", "limit", "attach", "environment", "memory"])
def test_other_processes(walled, repo, way):
    if way == "kill" and walled.name == "landlock" and walled.version < 6:
        pytest.skip("optional: signals need Landlock version 6")
    other = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], "HIDDEN": "neighbours-canary"}, start_new_session=True)
    try:
        command = {"kill": f"kill -9 {other.pid}", "group": f"kill -9 -{other.pid}", "environment": f"cat /proc/{other.pid}/environ",
                   "limit": python(f"import resource; resource.prlimit({other.pid}, resource.RLIMIT_CPU, (0, 0)); print('done')"),
                   "attach": python(f"import ctypes; print('done' if ctypes.CDLL(None).ptrace(16, {other.pid}, 0, 0) == 0 else 'no')"),
                   "memory": python(f"open('/proc/{other.pid}/mem', 'rb'); print('done')")}[way]
        result = walled.run(repo, command)
        time.sleep(0.1)
        assert other.poll() is None and "done" not in result.output and "canary" not in result.output
    finally:
        other.kill()
        other.wait()


def test_the_keeper_is_out_of_reach(walled, repo):
    result = walled.run(repo, "kill -9 $PPID; kill -9 -1; sleep 0.2; echo alive")
    assert result.not_run is None or walled.name != "landlock"
    assert not [line for line in processes("harnesslab-keeper") if line.startswith("Z")]
    assert walled.run(repo, "echo fine").output == "fine\n"


@pytest.mark.skipif(not LINUX, reason="needs /proc")
def test_powers(fence, repo):
    report = fence.run(repo, "grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status; ls /proc/self/fd").output.split()
    assert report[report.index("NoNewPrivs:") + 1] == "1" and report[report.index("CapEff:") + 1] == "0" * 16
    assert report[-4:] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("name", ["namespace", "container"])
def test_git_and_system_are_read_only(name, repo):
    room = get(name)
    result = room.run(repo, "echo x >> .git/config; rm -rf .git; mv .git x; echo x > .git/hooks/pre-commit; touch /usr/x /x /dev/x; mount -o remount,bind,rw /repo/.git; "
                            "mount -o remount,bind,rw /usr; touch /usr/x; git log --oneline | cut -d' ' -f2")
    assert result.output.endswith("first\n") and not (repo / ".git/hooks/pre-commit").exists() and not os.path.exists("/usr/x")
    assert "x\n" not in (repo / ".git/config").read_text()


@pytest.mark.parametrize("name", ["namespace", "container"])
@pytest.mark.parametrize("command", ["git init -q", "mkdir .git && mkfifo .git/HEAD", "echo 'gitdir: /x' > .git", "rm -f .git; mkdir .git"])
def test_a_git_that_a_command_made_is_told_of(name, command, tmp_path):
    """Its settings and hooks would run with the next `git status` of the person, outside the fence."""
    (tmp_path / "plain").mkdir()
    room = get(name)
    assert room.run(tmp_path / "plain", "echo x > file").note == ""
    result = room.run(tmp_path / "plain", command)
    assert result.exit_code == 0 and "made a .git" in result.note, result
    assert room.run(tmp_path / "plain", "echo y > file").note == ""


@pytest.mark.parametrize("name", ["namespace", "container"])
def test_a_linked_git_is_read_only_too(name, repo):
    room = get(name)
    shutil.move(repo / ".git", repo / "real")
    (repo / ".git").symlink_to("real")
    result = room.run(repo, "echo x >> .git/config; echo x > real/hooks/pre-commit; git log --oneline | cut -d' ' -f2")
    assert result.output.endswith("first\n") and "x\n" not in (repo / "real/config").read_text() and not (repo / "real/hooks/pre-commit").exists()
    assert "made a .git" in room.run(repo, "rm .git; mkdir .git").note


def test_namespace_shows_nothing_else(repo):
    room = get("namespace")
    assert room.run(repo, "ls /; ls /home /root /etc /repo 2>/dev/null; pwd").output.count("outside") == 0
    assert len(room.run(repo, "ls -d /proc/[0-9]*").output.split()) <= 4
    assert room.run(repo, "head -c 300000000 /dev/zero > /tmp/a; head -c 300000000 /dev/zero > /tmp/b; head -c 300000000 /dev/zero > /tmp/c; du -sxm /tmp | cut -f1", 30).output.split()[-1] in ("256", "257")


def test_a_git_file_or_link_is_no_obstacle(repo):
    """In a worktree `.git` is a file; somebody may have made it a link."""
    room = get("namespace")
    shutil.move(repo / ".git", repo.parent / "real")
    (repo / ".git").write_text("gitdir: ../real\n")
    assert room.run(repo, "cat .git; echo x >> .git").output.startswith("gitdir: ../real\n") and (repo / ".git").read_text() == "gitdir: ../real\n"
    (repo / ".git").unlink()
    (repo / ".git").symlink_to(repo.parent / "real")
    assert room.run(repo, "echo fine").output == "fine\n"


# ------------------------------------------------------------------ allowed doors
@pytest.mark.parametrize("name", ["landlock", "namespace"])
def test_network_on_request(name, repo):
    get(name)
    fence = choose_fence(name, network=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = fence.run(repo, python(f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]})); print('connected')"))
        assert result.output == "connected\n"
    assert "does not stop: connections to the network and to local services" in describe(fence)
    result = fence.run(repo, python("import socket; print(socket.socket(socket.AF_UNIX))"))
    assert (result.exit_code == 0) == (name == "namespace")


@pytest.mark.parametrize("name", ["landlock", "namespace"])
def test_more_to_read_on_request(name, repo):
    get(name)
    outside = repo.parent / "outside"
    fence = choose_fence(name, read=(str(outside),))
    result = fence.run(repo, f"cat {outside}/secret; echo x > {outside}/pwn")
    assert result.output.startswith("the-secret") and not (outside / "pwn").exists()


def test_a_server_and_its_client_inside_the_room(repo):
    result = get("namespace").run(repo, python("""import socket; s = socket.create_server(("127.0.0.1", 8000)); c = socket.create_connection(("127.0.0.1", 8000)); print("met")"""))
    assert result.output == "met\n"


# ------------------------------------------------------------------ a fence that does not start, or dies
def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_not_run_is_never_a_result(repo, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "START_LIMIT", 0.5)
    cases = [NamespaceFence(program="/no/such/bwrap"), NamespaceFence(program=script(tmp_path / "a", "echo 'cannot build'; exit 1")),
             NamespaceFence(program=script(tmp_path / "b", "exit 0")), NamespaceFence(program=script(tmp_path / "c", "exec sleep 60")),
             ContainerFence(engine="no-such-engine"), ContainerFence(engine=script(tmp_path / "d", "echo 'no daemon' >&2; exit 125"))]
    for fence in cases:
        result = fence.run(repo, "echo ran", timeout=0.5)
        assert result.exit_code is None and result.not_run and not result.timed_out and "ran\n" not in result.output, result
    assert "in time" in cases[3].run(repo, "true").not_run
    assert cases[1].run(repo, "true").not_run == "cannot build" and "no daemon" in cases[5].run(repo, "true").not_run
    nothing = NamespaceFence()
    nothing.program = ""
    assert "install" in nothing.run(repo, "true").not_run


def test_box_killed_under_the_command(repo, tmp_path):
    real = get("namespace").program
    result = NamespaceFence(program=script(tmp_path / "bwrap", f'(sleep 0.5; kill -9 $$) & exec {real} "$@"')).run(repo, "sleep 20; echo unreachable", timeout=15)
    assert result.exit_code is None and "died" in result.not_run and result.seconds < 5


@pytest.mark.skipif(not landlock_version(), reason="needs Landlock")
def test_landlock_that_cannot_be_built(repo):
    fence = LandlockFence()
    fence.walls = fence.walls | {"readable": ["/no/such/folder"]}
    assert fence.run(repo, "echo ran").not_run
    fence = LandlockFence()
    fence.walls = fence.walls | {"filter": b"\xff" * 16}
    assert "refused to build" in fence.run(repo, "echo ran").not_run
    fence = LandlockFence()
    fence.version = 0
    assert "no Landlock" in fence.run(repo, "true").not_run
    fence = LandlockFence()
    del fence.walls["filter"]
    assert "not known" in fence.run(repo, "true").not_run


@pytest.mark.skipif(not landlock_version(), reason="needs Landlock")
@pytest.mark.parametrize("version", range(1, min(7, landlock_version()) + 1))
def test_landlock_of_older_kernels(version, repo):
    """The plan for each older version must be one that the kernel accepts, and that still closes the files."""
    fence = LandlockFence()
    fence.version, fence.walls = version, fence.walls | fences._landlock_plan(version, False)
    result = fence.run(repo, "cat file.txt ../outside/secret; mkdir a b; echo x > a/f; " + python('import os; os.rename("a/f", "b/f"); print("moved")'))
    assert "hello" in result.output and "the-secret" not in result.output
    assert ("moved" in result.output) == (version >= 2)
    assert ((False, "signals to your other processes") in fence_facts(fence)) == (version < 6)


# ------------------------------------------------------------------ choosing
def test_auto_says_what_it_passed_over(monkeypatch):
    monkeypatch.setattr(fences, "_CHOSEN", {})
    monkeypatch.setattr(fences, "_bubblewraps", lambda: ["/bin/false"])
    chosen = choose_fence()
    assert chosen.name in ("landlock", "process")
    if LINUX:
        assert chosen.probe["passed_over"][0].startswith("namespace: ") and any(line.startswith("passed over: namespace") for line in describe(chosen))
        with pytest.raises(UsageError, match="no namespace fence"):
            choose_fence("namespace")
    close_idle()


def test_a_leaking_fence_is_not_chosen(monkeypatch):
    """A "namespace" that is no more than a shell: it runs, it works, and it leaks."""
    class Leaking(ProcessFence):
        name, network = "namespace", False
    monkeypatch.setattr(fences, "_CHOSEN", {})
    monkeypatch.setattr(fences, "NamespaceFence", lambda **_: Leaking())
    with pytest.raises(UsageError, match="write a file outside"):
        choose_fence("namespace")
    assert choose_fence().name != "namespace" or not LINUX
    close_idle()


def test_choice_is_made_once(monkeypatch):
    monkeypatch.setattr(fences, "_CHOSEN", {})
    tried = []
    monkeypatch.setattr(fences, "probe_fence", lambda fence: tried.append(fence.name) or probe_fence(fence))
    assert choose_fence("process") is choose_fence("process") and tried == ["process"]
    for bad in ({"name": "moat"}, {"name": "process", "read": "/usr"}):
        with pytest.raises(UsageError):
            choose_fence(**bad)
    close_idle()


def test_probe_reports_what_a_process_fence_lets_through(repo):
    found = probe_fence(ProcessFence())
    assert found["works"] and {"write a file outside", "read a file outside", "connect to a local service"} <= set(found["escapes"])
    if LINUX and os.getuid() != 0:                 # a root without capabilities cannot look into a root with them
        assert "read another process's environment" in found["escapes"]


@pytest.mark.skipif(not LINUX, reason="needs /proc")
def test_the_harness_is_hidden_while_a_process_fence_runs(repo):
    look = f"cat /proc/{os.getpid()}/environ > /dev/null && echo readable"
    assert "readable" not in ProcessFence().run(repo, look).output
    here = subprocess.run(["sh", "-c", look], capture_output=True, text=True).stdout
    assert here == "readable\n"                    # and not hidden for longer than that


# ------------------------------------------------------------------ the harness dies
@pytest.mark.parametrize("name", WALLED)
def test_harness_killed(name, repo):
    get(name)
    word = f"77{secrets.randbelow(10**9)}"
    code = (f"import os, pathlib; from harnesslab.fences import choose_fence; "
            f"choose_fence({name!r}, engine={ENGINE!r}, image={IMAGE!r}).run(pathlib.Path({str(repo)!r}), 'setsid sleep ' + os.environ['WORD'] + ' & sleep ' + os.environ['WORD'], 60)")
    harness = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).resolve().parent.parent, env=os.environ | {"WORD": word})
    for _ in range(500):
        if len([line for line in processes(f"sleep {word}") if "sh -c" not in line]) >= 2:
            break
        time.sleep(0.02)
    else:
        pytest.fail("the command did not start")
    harness.kill()
    harness.wait()
    for _ in range(500):
        if not processes(word):
            break
        time.sleep(0.02)
    assert not processes(word)


def test_nasty_rounds_behind_walls(walled, repo):
    """As for the bare keeper, which does a hundred of them. Nothing may be left: processes, threads, open files."""
    close_idle()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    word, late = f"77{secrets.randbelow(10**9)}", []
    nasty = [f"setsid sleep {word} & sleep {word}", f"trap '' TERM; yes {word}", f"sleep {word} & exit 3", f"(setsid sh -c 'sleep {word} & sleep {word} &' &); sleep {word}"]
    for round in range(1 if walled.name == "container" else 10):
        for command in nasty:
            result = walled.run(repo, command, timeout=0.1)
            assert not processes(word) and result.not_run is None, result
            if result.timed_out:
                late.append(result.seconds - 0.1)                # in a box, the time to build it is part of this
    close_idle()
    assert threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) == files
    assert sorted(late)[len(late) // 2] < (1.5 if walled.name == "container" else 0.1), late
