"""XProf itself on a preflight's profile: its server's answers, from its own process and packages.

XProf's packages do not go with TensorFlow 2.16's, so it has an environment apart: `make xprof`.
"""

import gzip
import json
import pathlib
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from tests.free_ports import free_ports
from tests.preflight.lowered import profile_layers

XPROF = pathlib.Path(__file__).parents[2] / ".make" / "xprof" / "bin" / "xprof"
RUN = "train-v5e_1x1"
MODULE = f"{RUN}(1)"


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Returns a step's report, and a function that queries XProf's server about its profile."""
    if not XPROF.exists():
        pytest.skip("xprof is missing: make xprof puts it into its own environment")
    folder = tmp_path_factory.mktemp("profile")
    _, of_step = profile_layers(str(folder))
    (address,) = free_ports(1)
    with subprocess.Popen(
        [str(XPROF), "--logdir", str(folder), "--port", address.split(":")[1]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:

        def ask(route, **values):
            query = urllib.parse.urlencode(values)
            url = f"http://{address}/data/plugin/profile/{route}?{query}"
            for _ in range(240):
                try:
                    with urllib.request.urlopen(url, timeout=60) as answer:
                        content = answer.read()
                        packed = answer.headers.get("Content-Encoding") == "gzip"
                        return (gzip.decompress(content) if packed else content).decode()
                except urllib.error.HTTPError:
                    raise
                except urllib.error.URLError:
                    assert server.poll() is None, "XProf's server has ended"
                    time.sleep(0.5)
            raise AssertionError(f"no answer from {url}")

        yield of_step, ask
        server.terminate()


def test_xprof_offers_its_tools(profiled):
    _, ask = profiled
    assert json.loads(ask("runs")) == [RUN]
    tools = json.loads(ask("run_tools", run=RUN))
    assert {"graph_viewer", "memory_viewer", "hlo_stats", "op_profile", "roofline_model"} <= {
        *tools
    }


def test_the_memory_viewer_shows_the_reports_hbm(profiled):
    report, ask = profiled
    shown = json.loads(
        ask(
            "data",
            run=RUN,
            tag="memory_viewer",
            host="preflight",
            module_name=MODULE,
            memory_space=0,
        )
    )
    need = report.need_bytes - report.memory.generated_code_bytes
    # To the number of digits that it writes: the same for steps of a few MiB and of many GiB.
    assert shown["totalBufferAllocationMib"] * 2**20 == pytest.approx(need, rel=1e-4)
    peak = need - report.gap_bytes
    assert shown["peakHeapMib"] * 2**20 == pytest.approx(peak, rel=1e-4)


def test_the_graph_viewer_draws_a_kernel(profiled):
    _, ask = profiled
    names = json.loads(ask("data", run=RUN, tag="hlo_stats", host="preflight"))
    columns = [each["id"] for each in names["cols"]]
    rows = [dict(zip(columns, [cell.get("v") for cell in row["c"]])) for row in names["rows"]]
    product = next(row for row in rows if "product" in (row["tf_op_name"] or ""))
    assert "lowered.py:" in product["source_info"]
    drawn = ask(
        "data",
        run=RUN,
        tag="graph_viewer",
        host="preflight",
        module_name=MODULE,
        node_name=product["hlo_op_name"],
        graph_width=1,
        type="graph",
        format="html",
    )
    assert product["hlo_op_name"] in drawn and "digraph" in drawn
