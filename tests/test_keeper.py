"""The keeper under attack: nothing of a command may be left, whatever the command does, and nobody else may be touched."""
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from harnesslab import keeper
from harnesslab.keeper import close_idle, run_kept
from harnesslab.loop import run_clock

LINUX = sys.platform == "linux"
linux_only = pytest.mark.skipif(not LINUX, reason="needs /proc and a subreaper (Linux)")
PROJECT = Path(__file__).resolve().parent.parent


def sh(command, timeout=5.0, root="/"):
    return run_kept(["/bin/sh", "-c", command], Path(root), timeout)


def processes():
    """{pid: command line} of everything that runs, zombies left out."""
    table = subprocess.run(["ps", "-axo", "pid=,stat=,args="], capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in table.splitlines()]
    return {int(row[0]): row[2] for row in rows if len(row) == 3 and not row[1].startswith("Z")}


def survivors(word):
    return [line for line in processes().values() if word in line and "ps -axo" not in line]


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def harness(script, word, **options):
    """Another harness, in a process of its own; the word reaches it through its environment, so that it is not found by it."""
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], cwd=PROJECT, env=os.environ | {"WORD": word}, start_new_session=True, **options)


@pytest.fixture
def word():
    """A number of seconds that no other process sleeps: the mark of this test in the process table."""
    return f"{secrets.randbelow(900) + 100}.{secrets.randbelow(10**9)}"


@pytest.fixture(autouse=True)
def nothing_left(tmp_path_factory, monkeypatch):
    """Every test: no thread, open file or scratch folder may be left."""
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TMPDIR", str(scratch))
    close_idle()
    before = threading.active_count(), open_files()
    yield
    close_idle()
    assert wait_for(lambda: threading.active_count() <= before[0], 2)
    assert open_files() == before[1]
    assert wait_for(lambda: not os.listdir(scratch), 2), os.listdir(scratch)


def open_files():
    return len(os.listdir("/proc/self/fd" if LINUX else "/dev/fd"))


# ------------------------------------------------------------------ nothing is left
NASTY = {
    "timeout": "sleep {w}",
    "pipeline": "sleep {w} | cat",
    "background": "sleep {w} & echo up",
    "pipe held": "sleep {w} & sleep {w} & exit 3",
    "redirected": "sleep {w} >/dev/null 2>&1 & echo up",
    "own session": "setsid sleep {w} & sleep {w}",
    "double fork": "(setsid sh -c 'sleep {w} & sleep {w} &' &) ; sleep {w}",
    "deaf to SIGTERM": "trap '' TERM INT HUP QUIT; sleep {w}; sleep {w}",
    "flood": "yes {w}",
    "flood behind": "(setsid yes {w} &); exit 1",
    "respawner": "setsid sh -c 'respawn() {{ sleep 0.01; respawn & }}; : {w}; respawn' & sleep {w}",
    "no environment": "env -i setsid sh -c 'sleep {w} & exit 0' & sleep 0.02",
}


@linux_only
def test_hundred_nasty_rounds_leave_nothing_and_end_in_time(word):
    """Threads, open files and scratch folders are counted by the fixture."""
    late = []
    for round in range(9):
        for name, command in NASTY.items():
            result = sh(command.format(w=word), timeout=0.06)
            assert not survivors(word), (name, survivors(word))
            assert result.not_run is None, (name, result)
            if result.timed_out:
                late.append(result.seconds - 0.06)
    assert len(late) >= 50
    assert statistics.median(late) < 0.1 and max(late) < 2, (statistics.median(late), max(late))


def test_port_is_free_again():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True); time.sleep(60)"
    result = sh(f'{sys.executable} -I -S -c "{server}" | cat', timeout=1.0)
    assert result.timed_out and result.output == "up\n"
    socket.create_server(("127.0.0.1", port)).close()


@linux_only
def test_fork_bomb(word):
    result = sh(f"bomb() {{ : {word}; bomb | bomb & }}; bomb; sleep {word}", timeout=0.3) if os.getuid() else sh(
        f"i=0; while [ $i -lt 300 ]; do sleep {word} & i=$((i+1)); done; wait", timeout=1.0)
    assert result.timed_out and not survivors(word)


def test_no_wait_for_a_background_child():
    result = sh("sleep 30 & echo up")
    assert result.exit_code == 0 and result.output == "up\n" and result.seconds < 2 and result.note == "1 background process ended"


@pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="optional: needs bash")
def test_output_of_a_short_background_child_is_not_lost():
    assert run_kept(["/bin/bash", "-c", "echo a > >(sleep 0.05; cat)"], Path("/"), 5).output == "a\n"


@linux_only
def test_harness_killed(word, tmp_path):
    """SIGKILL of the harness: the command and its scratch folder go, even if a forked child of the harness lives on."""
    script = f"""
        import os, pathlib, time
        from harnesslab.keeper import run_kept
        word = os.environ["WORD"]
        run_kept(["/bin/true"], pathlib.Path("/"), 5)                # a keeper that is idle at the fork
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        run_kept(["/bin/sh", "-c", f"touch $HOME/x; echo $HOME > {tmp_path}/home; (setsid sleep {{word}} &); sleep {{word}}"], pathlib.Path("/"), 60)
    """
    killed = harness(script, word)
    try:
        assert wait_for(lambda: len(survivors(word)) >= 2)
        killed.kill()
        killed.wait()
        assert wait_for(lambda: not survivors(word))
        home = Path((tmp_path / "home").read_text().strip())
        assert wait_for(lambda: not home.parent.exists())
    finally:
        os.killpg(killed.pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["interrupt", "exception"])
def test_interrupt_and_exception_in_mid_command(how, word, monkeypatch):
    def explode():
        if survivors(word):
            raise KeyboardInterrupt if how == "interrupt" else RuntimeError
        return False
    monkeypatch.setattr(keeper, "cancelled", explode)
    with pytest.raises(KeyboardInterrupt if how == "interrupt" else RuntimeError):
        sh(f"setsid sleep {word} & sleep {word}", timeout=20)
    assert not survivors(word)


def test_real_ctrl_c(word):
    """A real SIGINT to a harness that waits in its main thread."""
    script = """
        import os, pathlib
        from harnesslab.keeper import run_kept
        try:
            run_kept(["/bin/sh", "-c", "setsid sleep $0 & sleep $0", os.environ["WORD"]], pathlib.Path("/"), 60)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    interrupted = harness(script, word, stdout=subprocess.PIPE, text=True)
    assert wait_for(lambda: len(survivors(word)) >= 3)
    os.killpg(interrupted.pid, signal.SIGINT)
    assert interrupted.communicate(timeout=10)[0] == "interrupted\n" and not survivors(word)


def test_cancelled_run(word):
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    with run_clock(60, cancel):
        result = sh(f"sleep {word}", timeout=30)
    assert result.seconds < 3 and result.exit_code is None and not result.timed_out and "cancelled" in result.note
    assert not survivors(word)


# ------------------------------------------------------------------ nobody else is touched
def test_the_users_own_children_live_and_can_be_waited_for(word):
    mine = subprocess.Popen(["sh", "-c", "sleep 1; exit 7"])
    orphan = subprocess.run(["sh", "-c", f"setsid sleep {word} >/dev/null 2>&1 & echo $!"], capture_output=True, text=True).stdout
    try:
        for _ in range(5):
            sh("setsid sleep 60 & sleep 60", timeout=0.1)
        assert mine.wait() == 7
        assert survivors(word)
    finally:
        subprocess.run(["kill", "-9", orphan.strip()])


def test_eight_threads_do_not_disturb_each_other(word):
    results = {}

    def work(number):
        for turn in range(3):
            results[number, turn, "noisy"] = sh(f"setsid sleep {word} & sleep {word}", timeout=0.05 * (number % 3 + 1))
            results[number, turn, "quiet"] = sh(f"sleep 0.3; echo {number} {turn}")
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(result.timed_out for (_, _, kind), result in results.items() if kind == "noisy")
    assert all(result.output == f"{number} {turn}\n" for (number, turn, kind), result in results.items() if kind == "quiet")
    assert not survivors(word)


def test_keepers_go_when_idle_and_retire(monkeypatch):
    sh("true")
    first = list(keeper._POOL.everyone)
    assert len(first) == 1 and first[0].process.poll() is None
    time.sleep(2.5 * keeper.LINGER)
    assert not keeper._POOL.everyone and first[0].process.returncode == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "harnesslab-keepers"]
    monkeypatch.setattr(keeper, "_MOST_USES", 2)
    sh("true"), sh("true")
    assert not keeper._POOL.everyone


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_its_own_keepers():
    sh("true")
    child = os.fork()
    if child == 0:
        os._exit(0 if sh("echo child").output == "child\n" and sh("exit 3").exit_code == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sh("echo parent").output == "parent\n"


# ------------------------------------------------------------------ attacks on the keeper
@linux_only
@pytest.mark.parametrize("attack", ["kill -9 $PPID", "setsid sh -c 'kill -9 $0; sleep {w}' $PPID & sleep {w}"])
def test_killed_keeper_is_no_result(attack, word):
    result = sh(f"sleep {word} & {attack.format(w=word)}; sleep {word}")
    assert result.exit_code is None and "keeper was killed" in result.not_run and not survivors(word)


@linux_only
def test_a_command_cannot_answer_in_the_keepers_place():
    """The harness hears the keeper through a pipe; a command that could open it would write its own exit code."""
    for place in ("2", "1", "0"):
        result = sh(f'echo "done 0 0 0" > /proc/$PPID/fd/{place}; sleep 0.2; exit 7')
        assert result.exit_code == 7 and "ermission denied" in result.output, result
    assert sh("exit 5").exit_code == 5


@pytest.mark.parametrize("line", ["done", "done 0 0", "done x 0 0", "done 0 0 7", f"done {'9' * 5000} 0 0", "done 0 0 0\ndone 0 0 0", "\xff"])
def test_an_answer_that_is_none(line, monkeypatch):
    """Whatever comes through that pipe, it is an answer or the news that there was none; never an exception."""
    spoiled = keeper._functions().replace('f"done {code} {killed} {int(left)}\\n".encode()', repr(line.encode("latin-1") + b"\n"))
    assert spoiled != keeper._functions()
    monkeypatch.setattr(keeper, "_functions", lambda: spoiled)
    result = sh("true")
    assert result.exit_code is None and "keeper was killed" in result.not_run


def test_a_harness_that_was_started_with_its_childrens_signal_ignored():
    """As some supervisors do. Then the kernel keeps no exit codes, unless somebody sets that right."""
    script = """
        import pathlib
        from harnesslab.keeper import run_kept
        print([run_kept(["/bin/sh", "-c", command], pathlib.Path("/"), 2).exit_code for command in ("exit 7", "true", "(exit 3) & wait $!")])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=PROJECT, capture_output=True, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.stdout == "[7, 0, 3]\n", done


@linux_only
def test_polite_signals_do_not_reach_the_keeper():
    assert sh("for s in TERM INT HUP QUIT; do kill -$s $PPID; done; echo alive; exit 4").exit_code == 4


@linux_only
def test_stopped_keeper(word):
    """SIGSTOP cannot be ignored. The harness wakes the keeper at the deadline."""
    result = sh(f"(setsid sleep {word} &); kill -STOP $PPID; sleep {word}", timeout=0.3)
    assert result.timed_out and result.seconds < 2 and not survivors(word)
    result = sh("kill -STOP $PPID; exit 5", timeout=0.3)
    assert result.exit_code == 5 and not result.timed_out


@linux_only
def test_keeper_stopped_again_and_again(word):
    result = sh(f"while :; do kill -STOP $PPID; : {word}; done", timeout=0.2)
    assert result.timed_out and not survivors(word) and result.seconds < 4


def test_keeper_cannot_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "could not start" in sh("true").not_run


def test_a_keeper_that_fails_at_once(monkeypatch):
    monkeypatch.setattr(keeper, "command_limits", lambda cpu: [("NO_SUCH_LIMIT", 1, 1)])
    result = sh("true")
    assert result.exit_code is None and result.not_run


def test_folder_or_program_missing():
    assert "FileNotFoundError" in sh("true", root="/no/such/folder").not_run
    assert "FileNotFoundError" in run_kept(["/no/such/program"], Path("/"), 5).not_run


# ------------------------------------------------------------------ scratch folder, input, limits
@pytest.mark.parametrize("mess", ["touch a .b; mkdir c", "chmod 000 $HOME", "mkdir $HOME/d; touch $HOME/d/x; chmod 000 $HOME/d", "rm -rf $HOME", "rmdir $HOME; ln -s {precious} $HOME",
                                  "cd $HOME; i=0; while [ $i -lt 1500 ]; do mkdir d; cd d; i=$((i+1)); done", "rm -rf $HOME/.."])
def test_every_command_finds_an_empty_home(mess, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    sh(f"cd $HOME && {mess.format(precious=precious)}", timeout=20)
    result = sh("cd $HOME && ls -A && touch ok && ls && test $TMPDIR = $HOME && echo same")
    assert result.output == "ok\nsame\n"
    assert (precious / "file").read_text() == "keep" and precious.stat().st_mode & 0o700 == 0o700


@linux_only
def test_only_three_open_files():
    assert sh("ls /proc/self/fd").output.split() == ["0", "1", "2", "3"]            # 3 is the folder that ls reads


def test_no_terminal_no_input():
    result = sh("cat; (echo < /dev/tty) 2>/dev/null || echo none; git commit 2>/dev/null </dev/null; echo end")
    assert result.output == "none\nend\n"


@linux_only
def test_limits():
    report = sh("ulimit -t; ulimit -n; ulimit -c; ulimit -f; ulimit -v; grep NoNewPrivs /proc/self/status | cut -f2; grep CapEff /proc/self/status | cut -f2").output.split()
    assert report == ["30", "1024", "0", str((128 << 20) // 512), str(2 << 20), "1", "0" * 16]
    assert "128 MiB" in sh("cd $HOME; exec head -c 200000000 /dev/zero > big").note
    assert sh("python3 -c 'bytearray(3 << 30)' 2>&1 | tail -1").output == "MemoryError\n"


@linux_only
def test_cpu_limit(monkeypatch):
    real = keeper.command_limits()
    monkeypatch.setattr(keeper, "command_limits", lambda cpu: [("CPU", 1, 2), *real[1:]])
    keeper.close_idle()
    result = sh("while :; do :; done", timeout=10)
    assert result.exit_code == -signal.SIGXCPU and "30 s of CPU time" in result.note


@linux_only
def test_a_command_that_is_given_more_time_is_given_more_cpu_time():
    """A test suite of two busy minutes may be run; nothing that is not given the time for it gets more than half a minute."""
    assert [sh("ulimit -t", timeout=seconds).output.split() for seconds in (1, 30, 31, 120, 500, 30)] == [["30"], ["30"], ["60"], ["120"], ["960"], ["30"]]
    assert [keeper.cpu_limit(seconds) for seconds in (0.1, 30, 30.5, 60, 61)] == [30, 30, 60, 60, 120]


@linux_only
@pytest.mark.skipif(os.getuid() == 0, reason="optional: the kernel does not limit root's processes")
def test_process_limit(word):
    result = sh(f"i=0; while [ $i -lt 1000 ]; do sleep {word} & i=$((i+1)); done", timeout=10)
    assert "fork" in result.output.lower() and not survivors(word)


def test_disk_alarm(monkeypatch, tmp_path):
    monkeypatch.setattr(keeper, "MAX_DISK", 50 << 20)
    result = sh("i=0; while [ $i -lt 200 ]; do head -c 4000000 /dev/urandom > f$i; i=$((i+1)); done", timeout=20, root=tmp_path)
    assert result.exit_code is None and not result.timed_out and "disk space" in result.note


# ------------------------------------------------------------------ output
def test_partial_output_at_the_deadline():
    result = sh("echo before; echo oops >&2; sleep 60", timeout=0.3)
    assert result.timed_out and result.output == "before\noops\n"


def test_binary_and_broken_text():
    result = sh("head -c 64 /dev/urandom; exit 3")
    assert result.exit_code == 3 and result.output == "[binary output, 64 bytes]" and result.note == "binary output, 64 bytes"
    assert sh(r"printf 'caf\351 = 1\nx = 1\n'").output == "caf\ufffd = 1\nx = 1\n"
    assert sh(r"printf '\033[2K\033]0;t\007a\000b'").output == "a\\x00b"


def test_head_and_tail_of_much_output():
    result = sh("echo HEAD; yes 'filler filler' | head -c 3000000; echo; echo TAIL; exit 7")
    assert result.exit_code == 7 and result.output.startswith("HEAD\n") and result.output.endswith("TAIL\n") and "bytes cut" in result.output
    assert len(result.output) < 140_000


def test_memory_stays_flat_with_a_gigabyte_of_output():
    script = """
        import pathlib, resource
        from harnesslab.keeper import run_kept
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run_kept(["/bin/true"], pathlib.Path("/"), 5)
        before = peak()
        result = run_kept(["/bin/sh", "-c", "yes 0123456789abcdef | head -c 1000000000"], pathlib.Path("/"), 60)
        assert result.exit_code == 0 and "bytes cut" in result.output, result
        print(peak() - before)
    """
    grown = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=PROJECT, capture_output=True, text=True)
    assert grown.returncode == 0, grown.stderr
    assert int(grown.stdout) / (1024 if LINUX else 1024 * 1024) < 30


# ------------------------------------------------------------------ systems without a subreaper, tried here
@pytest.mark.parametrize("name", ["timeout", "pipeline", "background", "redirected", "own session", "deaf to SIGTERM", "flood"])
def test_process_table_instead_of_subreaper(name, word, monkeypatch):
    monkeypatch.setattr(keeper, "_FAMILY", "table")
    result = sh(NASTY[name].format(w=word), timeout=0.4)
    assert result.not_run is None and not survivors(word)
