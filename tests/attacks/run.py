"""Run the suite against one adapter.

  python3 run.py --adapter adapters.seed_literal:Seed [--only C0,P] [--uid 65534] [--json out.json]

Each case gets a fresh folder and its own harness process with the key in its environment, a time limit, a memory limit of
6 GiB and a file limit of 600 MB. Every payload ends by itself within 25 s; marked survivors are killed by pid after each case.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import core
import suite            # noqa: F401

ap = argparse.ArgumentParser()
ap.add_argument("--adapter", required=True)
ap.add_argument("--only", default="")
ap.add_argument("--uid", type=int)
ap.add_argument("--python", default=sys.executable)
ap.add_argument("--json")
ap.add_argument("--visible", action="store_true", help="leave the held-out cases out")
ap.add_argument("-q", action="store_true")
o = ap.parse_args()
only = [x for x in o.only.split(",") if x]
rows = []
top = pathlib.Path(tempfile.mkdtemp(prefix="atk-"))
os.chmod(top, 0o755)


def limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (600 << 20, 600 << 20))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    except (ValueError, OSError):
        pass                                        # macOS


try:
    for c in core.CASES:
        if only and not any(c["id"].startswith(x) for x in only) or (o.visible and c["held_out"]):
            continue
        base = pathlib.Path(tempfile.mkdtemp(prefix="w", dir=top))
        tok, mark = core.new_token(), core.new_mark()
        (base / "tok").write_text(tok)
        env = {"PATH": os.environ["PATH"], "HOME": str(base / "home"), "LANG": "C.UTF-8", "ANTHROPIC_API_KEY": tok, "HL_MARK": mark,
               "HL_ADAPTER_PATH": os.environ.get("HL_ADAPTER_PATH", ""), "HL_DEBUG": os.environ.get("HL_DEBUG", ""),
               "PYTHONDONTWRITEBYTECODE": "1"} | {name: os.environ[name] for name in ("HL_ENGINE", "HL_IMAGE") if name in os.environ}
        kw = {}
        if o.uid is not None:
            kw = dict(user=o.uid, group=o.uid, extra_groups=[])
            for p in (base, base / "tok"):
                os.chown(p, o.uid, o.uid)
        limit = c["seconds"] + 20
        t = time.time()
        p = subprocess.Popen([o.python, str(HERE / "run_one.py"), "--adapter", o.adapter, "--case", c["id"], "--base", str(base),
                              "--out", str(base / "out.json"), "--token-file", str(base / "tok")],
                             stdin=subprocess.PIPE if c["pipe"] else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd="/",
                             start_new_session=True, preexec_fn=limits, **kw)
        if p.stdin:
            try:
                p.stdin.write(b"y\nyes\nSTDIN-FOR-THE-HARNESS\n")
                p.stdin.flush()                    # and left open: a command that reads it waits
            except OSError:
                pass
        try:
            rc = p.wait(timeout=limit)
            res = json.loads((base / "out.json").read_text()) if (base / "out.json").exists() else \
                dict(result="unsafe", note=f"the harness process died (exit {rc})", seconds=round(time.time() - t, 2))
            if not (base / "out.json").exists() and os.environ.get("HL_DEBUG"):
                res["note"] += p.stdout.read1(2000).decode("utf8", "replace")
        except subprocess.TimeoutExpired:
            res = dict(result="hang", note=f"no end within {limit} s", seconds=limit)
            p.kill()
            p.wait()
        for f in (p.stdin, p.stdout):
            if f:
                f.close()
        try:
            os.killpg(p.pid, signal.SIGKILL)       # whatever the harness left in its own process group
        except OSError:
            pass
        for pid, _ in core.marked(mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        subprocess.run(["chmod", "-R", "u+rwx", str(base)], capture_output=True)
        shutil.rmtree(base, ignore_errors=True)
        row = {k: c[k] for k in ("id", "group", "title", "expect", "held_out", "control", "policy", "where", "stops")} | res
        row.pop("case", None)
        rows.append(row)
        if not o.q:
            print(f"{row['id']:4} {row['result']:7} {row['seconds']:6.1f}s {'H' if row['held_out'] else ' '} {row['title'][:60]:60} {row['note'][:90]}", flush=True)
finally:
    shutil.rmtree(top, ignore_errors=True)
count = {}
for r in rows:
    count[r["result"]] = count.get(r["result"], 0) + 1
print(o.adapter, len(rows), "cases:", ", ".join(f"{v} {k}" for k, v in sorted(count.items())))
if o.json:
    pathlib.Path(o.json).write_text(json.dumps(dict(adapter=o.adapter, uid=os.getuid() if o.uid is None else o.uid, platform=sys.platform, rows=rows), indent=1))
sys.exit(0 if all(r["result"] in ("pass", "skip") for r in rows) else 1)
