"""Batches: whatever moment the plug is pulled, whoever else works in the folder, nothing is lost and nothing is counted twice."""
import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from harnesslab import batches
from harnesslab.batches import Budget, Job, Spent, Store, do_job, make_key, run_batch
from harnesslab.loop import UsageError
from batch_jobs import jobs_of

linux_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="optional: needs Linux and root")
SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
from batch_jobs import jobs_of
from harnesslab.batches import run_batch
print("ready", flush=True)
batch = run_batch({folder!r}, jobs_of({work!r}, {count}), workers={workers}, progress=False)
print(json.dumps([batch.stopped, len(batch.rows)]), flush=True)
"""


def start(folder, work="brief", count=12, workers=3, **options):
    """A process that runs a batch; it has said "ready" when this returns."""
    code = SCRIPT.format(tests=os.path.dirname(__file__), folder=str(folder), work=work, count=count, workers=workers)
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    return process


def finish(process, timeout=60):
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1]), err


def index(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def plain(rows):
    return sorted((row["task"], row["passed"], row["tok_in"]) for row in rows)


def test_ten_kills_at_random_and_the_table_is_that_of_a_quiet_night(tmp_path):
    quiet = run_batch(tmp_path / "quiet", jobs_of("brief", 60), workers=3, progress=False)
    seed, kills = random.Random(7), 0
    while kills < 10:
        process = start(tmp_path / "wild", count=60)
        time.sleep(seed.uniform(0.0, 0.35))
        kills += process.poll() is None
        process.kill()
        process.wait()
        process.stdout.close(), process.stderr.close()
        finished = [row["key"] for row in Store(tmp_path / "wild").rows()]
        assert len(finished) == len(set(finished)) < 60                # at every moment the folder can be read
    [stopped, count], _ = finish(start(tmp_path / "wild", count=60))
    rows = index(tmp_path / "wild")
    assert (stopped, count) == ("", 60) and plain(rows) == plain(quiet.rows) == plain(index(tmp_path / "quiet"))
    assert any(row["attempt"] > 1 for row in rows)                    # a retry is told
    assert all(row["attempt"] == 1 + len(row["saw"]) for row in rows)


def test_two_processes_share_a_folder_and_both_have_the_whole_table(tmp_path):
    first, second = (start(tmp_path, count=30, workers=2) for _ in range(2))
    assert finish(first)[0] == finish(second)[0] == ["", 30]
    rows = index(tmp_path)
    assert len(rows) == len({row["key"] for row in rows}) == 30 and all(row["attempt"] == 1 for row in rows)
    assert len({row["pid"] for row in rows}) == 2                      # both had work


def test_a_claim_of_a_dead_process_is_free_and_a_live_one_is_waited_for(tmp_path):
    holder = start(tmp_path, work="slow", count=1, workers=1)
    store, [job] = Store(tmp_path), jobs_of("slow", 1)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not store.attempts(job):
        time.sleep(0.02)
    assert do_job(str(tmp_path), job, str(tmp_path / "stop")) == ("elsewhere", {})
    claim = json.loads((tmp_path / "runs/demo/.claims" / job.name).read_text())
    assert claim["pid"] == holder.pid
    holder.kill()
    holder.communicate()
    state, row = do_job(str(tmp_path), jobs_of("brief", 1)[0], str(tmp_path / "stop"))
    assert (state, row["attempt"]) == ("done", 2)


def test_ctrl_c_once_finishes_what_runs(tmp_path):
    process = start(tmp_path, work="half-second", count=8, workers=2)
    time.sleep(0.25)
    process.send_signal(signal.SIGINT)
    [stopped, count], err = finish(process)
    statuses = [row["status"] for row in index(tmp_path)]
    assert stopped == "interrupted" and count == 8 and statuses.count("done") == 2 and statuses.count("not run: interrupted") == 6
    assert "Finishing the 2 runs under way" in err and not list((tmp_path / "runs").glob(".stop*"))


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_twice_stops_it_and_the_runs_are_done_again(tmp_path, second):
    process = start(tmp_path, work="slow", count=3, workers=2)
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(second)
    [stopped, _], err = finish(process)
    assert stopped == "interrupted" and time.monotonic() - began < 8 and "Stopping what runs" in err
    assert Store(tmp_path).rows() == []
    again = run_batch(tmp_path, jobs_of("brief", 3), progress=False)
    assert [row["attempt"] for row in again.rows] == [2, 2, 1] and not again.stopped
    assert {row["status"] for row in index(tmp_path)} == {"done"}


def test_processes_do_the_work_and_a_lost_worker_loses_nothing(tmp_path):
    with ProcessPoolExecutor(2) as pool:
        whole = run_batch(tmp_path / "whole", jobs_of("brief", 10), executor=pool, progress=False)
    assert not whole.stopped and len({row["pid"] for row in whole.rows} - {os.getpid()}) == 2
    with ProcessPoolExecutor(1) as pool:
        broken = run_batch(tmp_path / "broken", jobs_of("dies-once", 4), executor=pool, progress=False)
    assert "does not take any more work" in broken.stopped
    statuses = [row["status"] for row in broken.rows]
    assert "crashed" in statuses and "done" not in statuses[2:]
    rest = run_batch(tmp_path / "broken", jobs_of("dies-once", 4), progress=False)
    assert [row["status"] for row in rest.rows] == ["done"] * 4 and rest.rows[0]["attempt"] == 2


def test_a_worker_of_a_cluster_is_killed_in_mid_run(tmp_path):
    dask = pytest.importorskip("dask.distributed", reason="dask.distributed is an extra")
    with dask.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster, dask.Client(cluster) as client:
        jobs, store = jobs_of("third-second", 16), Store(tmp_path)
        victims = list(client.run(os.getpid).values())

        def strike():
            while not any(pid_of(path) == victims[0] for job in jobs for path in store.attempts(job)):
                time.sleep(0.02)
            os.kill(victims[0], signal.SIGKILL)
        killer = threading.Thread(target=strike)
        killer.start()
        batch = run_batch(tmp_path, jobs, executor=client.get_executor(), workers=2, progress=False)
        killer.join()
    rows = index(tmp_path)
    assert not batch.stopped and len(rows) == len({row["key"] for row in rows}) == 16 and {row["status"] for row in rows} == {"done"}
    assert [row["attempt"] for row in rows].count(2) == 1              # the run that died with its worker, and no other
    assert victims[1] in {row["pid"] for row in rows} and os.getpid() not in {row["pid"] for row in rows}


def pid_of(attempt):
    try:
        return int((attempt / "pid").read_text())
    except (OSError, ValueError):
        return None


def test_the_budget_sees_what_is_under_way(tmp_path):
    """Runs that have spent the budget and are not finished yet keep others from being started."""
    batch = run_batch(tmp_path, jobs_of("spends-early", 12), workers=2, budget=Budget(tokens=1_000), progress=False)
    statuses = [row["status"] for row in batch.rows]
    done = statuses.count("done")                                       # the first may have spent it before the second begins
    assert batch.stopped == "budget" and done in (1, 2) and statuses.count("not run: budget") == 12 - done
    assert batch.spent.tokens == 1_000 * done and not batches.LIVE


def test_the_budget_sees_what_other_processes_have_finished(tmp_path):
    jobs, store = jobs_of("spends-early", 4), Store(tmp_path)
    jobs[0] = jobs_of("slowly", 1)[0]

    def somebody_else():
        with store.claim(jobs[3]):
            store.publish(jobs[3], store.begin(jobs[3]), {"label": "demo", "key": jobs[3].key, "status": "done", "tok_in": 5_000})
    threading.Timer(0.3, somebody_else).start()
    batch = run_batch(tmp_path, jobs, workers=1, budget=Budget(tokens=3_000), progress=False)
    assert [row["status"] for row in batch.rows] == ["done", "not run: budget", "not run: budget", "done"] and batch.spent.tokens > 5_000


@pytest.mark.parametrize("wrong", [lambda: Budget(dollars=0), lambda: Budget(tokens=-1), lambda: run_batch("x", [], workers=0), lambda: run_batch("x", [], workers=True)])
def test_wrong_numbers_are_one_sentence(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"must be"):
        wrong()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Results cannot be written to"):
        Store(tmp_path / "file" / "out")


def test_the_index_comes_back_from_the_folders_whatever_happened_to_it(tmp_path):
    run_batch(tmp_path, jobs_of("brief", 3), progress=False)
    whole, store = index(tmp_path), Store(tmp_path)
    for damage in (b"", (tmp_path / "results.jsonl").read_bytes()[:-30], b"\0" * 200, None):
        store.index.unlink() if damage is None else store.index.write_bytes(damage)
        store.write_index()
        assert index(tmp_path) == whole
    store.index.write_bytes(store.index.read_bytes()[:-30])           # torn, and then a run is finished
    run_batch(tmp_path, jobs_of("brief", 4), progress=False)
    assert len(index(tmp_path)) == 4


def test_lines_of_others_in_the_index_stay(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"label": "theirs", "task": "x"}\n')
    run_batch(tmp_path, jobs_of("brief", 2), progress=False)
    assert [row["label"] for row in index(tmp_path)] == ["theirs", "demo", "demo"]


def test_labels_that_look_alike_as_folders_are_not_mixed(tmp_path):
    store, alike = Store(tmp_path), ["a/b", "a_b", "\u524d", "\u5f8c", ".a", "a", "_", "x" * 120, "x" * 121, "", "."]
    for label in alike:
        store.settle(label, {"model": "m"})
        with pytest.raises(UsageError, match="another configuration"):
            store.settle(label, {"model": "n"})
    assert len({store.home(label) for label in alike}) == len(alike) and store.home("a_b").name == "a_b"
    assert "/" not in Job("x", "../y", make_key(1), {}, None).name
    assert store.home("../../x").parent == store.runs


def test_rows_with_odd_values_become_plain(tmp_path):
    batch = run_batch(tmp_path, jobs_of("odd", 1), progress=False)
    assert batch.rows[0]["path"] == "/tmp" and index(tmp_path)[0]["path"] == "/tmp"
    row = index(tmp_path)[0]                                            # what the work calls itself does not count
    assert [row[name] for name in ("label", "task", "rep", "key", "attempt")] == ["demo", "task-0", 0, make_key(0), 1]


def test_spent_counts_earlier_tries_and_says_what_it_does_not_know():
    row = {"tok_in": 10, "tok_out": 5, "dollars": None, "earlier": [{"tok_in": 100, "tok_out": 0, "dollars": 0.5}, {"tok_in": None}]}
    assert batches.spent_by(row) == Spent(0.5, 115, 1)


def test_nothing_outlives_a_batch(tmp_path):
    before = {thread.name for thread in threading.enumerate()}
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run_batch(tmp_path, jobs_of("brief", 5), progress=False)
    assert {thread.name for thread in threading.enumerate()} <= before
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_the_bar_in_a_terminal(tmp_path):
    """Passes, tokens and the time left, in a real terminal; nothing in a log file."""
    import fcntl
    import pty
    import select
    import struct
    import termios
    code = SCRIPT.format(tests=os.path.dirname(__file__), folder=str(tmp_path), work="brief", count=6, workers=2).replace("progress=False", "progress=True")
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=child, env={**os.environ, "TERM": "xterm"})
    os.close(child)
    seen = b""
    while select.select([parent], [], [], 20)[0]:
        try:
            seen += os.read(parent, 4096)
        except OSError:                                                # the terminal is gone with the process
            break
    process.communicate()
    os.close(parent)
    text = seen.decode()
    assert "6/6" in text and "6 passed" in text and "tokens" in text and "<" in text
    assert finish(start(tmp_path / "log"))[1] == ""


def job_of(work, number=0, recount=None):
    return Job("demo", f"t-{number}", make_key(number), {"task": f"t{number}", "rep": 0}, work, recount=recount)


def one_good_run(attempt):
    return {"status": "done", "passed": True, "tok_in": 10, "tok_out": 1}


def crash(attempt):
    attempt.totals.add({"type": "model_replied", "payload": {"usage": {"fresh": 400}}})
    raise RuntimeError("boom")


def test_the_budget_remembers_the_tries_that_crashed(tmp_path):
    """Night by night the same run crashes; when its tries have spent the budget, it is not begun again."""
    ends, spent = [], []
    for _ in range(4):
        batch = run_batch(tmp_path, [job_of(crash)], budget=Budget(tokens=1_000), workers=1, progress=False)
        ends.append(batch.stopped)
        spent.append(batch.spent.tokens)
    assert ends == ["1 run broke off"] * 3 + ["budget"] and spent == [400, 800, 1_200, 1_200]
    assert len(Store(tmp_path).attempts(job_of(crash))) == 3
    done = run_batch(tmp_path, [job_of(one_good_run)], progress=False)
    assert done.spent.tokens == run_batch(tmp_path, [job_of(one_good_run)], progress=False).spent.tokens == 1_211


def test_the_budget_asks_a_job_what_killed_tries_have_spent(tmp_path):
    recount = lambda folder: {"tok_in": int((folder / "spent").read_text())}
    folder = Store(tmp_path).home("demo") / f"{job_of(crash).name}.attempt-1"
    folder.mkdir(parents=True)                                          # what a killed process leaves
    (folder / "spent").write_text("700")
    job = job_of(one_good_run, recount=recount)
    assert run_batch(tmp_path, [job], budget=Budget(tokens=700), progress=False).stopped == "budget"
    work = lambda attempt: one_good_run(attempt) | {"earlier": [recount(path) for path in attempt.earlier]}
    batch = run_batch(tmp_path, [job_of(work, recount=recount)], budget=Budget(tokens=701), progress=False)
    assert not batch.stopped and batch.spent.tokens == 711               # what the row tells again is not counted twice


def test_what_is_done_again_counts_and_what_is_not_keeps_its_row(tmp_path):
    failed = lambda attempt: {"status": "api_error", "passed": None, "tok_in": 1_000, "tok_out": 0}
    jobs = [job_of(failed, number) for number in range(4)]
    assert run_batch(tmp_path, jobs, workers=1, progress=False).spent.tokens == 4_000
    for _ in range(2):
        batch = run_batch(tmp_path, jobs, budget=Budget(tokens=4_500), redo=lambda row: True, workers=1, progress=False)
        assert (batch.stopped, batch.spent.tokens) == ("budget", 5_000)
        assert [row["status"] for row in batch.rows] == ["api_error"] * 4 == [row["status"] for row in index(tmp_path)]
        assert [row["attempt"] for row in batch.rows] == [2, 1, 1, 1]


@pytest.mark.parametrize("value", ["0.12", float("nan"), float("inf"), -1, [1], {}, True, None])
def test_a_stored_row_with_odd_numbers_ends_nothing(value, tmp_path):
    work = lambda attempt: {**one_good_run(attempt), "dollars": value, "earlier": value}
    for _ in range(2):
        batch = run_batch(tmp_path, [job_of(work)], budget=Budget(dollars=5), progress=False)
        assert not batch.stopped and batch.spent == Spent(float(value is True), 11, int(value is not True))


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-20]), os.unlink, lambda path: path.write_text("[]"), lambda path: path.write_bytes(b"\0" * 99)])
def test_a_damaged_row_is_paid_once_more_and_no_more(damage, tmp_path):
    begun = []
    work = lambda attempt: begun.append(attempt.number) or one_good_run(attempt)
    for number in range(3):
        batch = run_batch(tmp_path, [job_of(work)], progress=False)
        assert not batch.stopped and batch.rows[0]["status"] == "done"
        if number == 0:
            damage(tmp_path / batch.rows[0]["folder"] / "row.json")
    assert begun == [1, 2] and [row["attempt"] for row in index(tmp_path)] == [2]


def test_a_copy_of_a_try_is_no_try(tmp_path):
    run_batch(tmp_path, [job_of(crash)], progress=False)
    [folder] = Store(tmp_path).attempts(job_of(crash))
    folder.with_name(folder.name + ".bak").mkdir()
    assert Store(tmp_path).attempts(job_of(crash)) == [folder] and run_batch(tmp_path, [job_of(one_good_run)], progress=False).rows[0]["attempt"] == 2


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_stops_the_batch_with_one_sentence(reason, tmp_path):
    begun = []

    def full(attempt):
        begun.append(attempt.number)
        raise OSError(reason, os.strerror(reason))
    for _ in range(2):
        with pytest.raises(UsageError, match="make room"):
            run_batch(tmp_path, [job_of(full, number) for number in range(6)], workers=1, progress=False)
    assert len(begun) == 2
    assert not run_batch(tmp_path, [job_of(one_good_run, number) for number in range(6)], progress=False).stopped


@linux_root
def test_a_disk_that_is_really_full(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("optional: nothing can be mounted here")
    begun = []

    def big(attempt):
        begun.append(attempt.number)
        (attempt.folder / "x").write_bytes(os.urandom(60_000))
        return one_good_run(attempt)
    try:
        with pytest.raises(UsageError, match="make room"):
            run_batch(tmp_path, [job_of(big, number) for number in range(9)], workers=1, progress=False)
        assert 1 < len(begun) < 6 and len(Store(tmp_path, make=False).rows()) == len(begun) - 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_in_the_place_of_a_label(tmp_path):
    store = Store(tmp_path)
    (store.runs / "v1").write_text("")
    with pytest.raises(UsageError, match="Results cannot be written to .*v1"):
        store.settle("v1", {})
