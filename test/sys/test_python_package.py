# SPDX-License-Identifier: Apache-2.0
"""The Python package itself: how it finds its library, in whose place it stands and when not, and its own classes. Run by
test_python_package.sh."""

import ctypes
import gc
import mmap
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import weakref

import lanewise
from wire import RANDOM, FakeTarget, crc, eventually, main, rest

try:
    import numpy
except ImportError:
    numpy = None

SIZE = 1 << 20
SHIM = os.path.abspath("apps/python/lanewise/shim")


def python(program, **environment):
    """What a Python of its own prints, and how it ends."""
    env = {name: value for name, value in os.environ.items() if name != "LANEWISE_MOONCAKE"} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stdout + done.stderr


class Finding(unittest.TestCase):
    def test_library_that_is_named_and_is_not_there(self):
        for path in ("/nonexistent/liblanewise.so.0", os.path.abspath(__file__)):
            status, text = python("import lanewise", LANEWISE_LIBRARY=path)
            self.assertEqual(status, 1)
            self.assertIn("ImportError: liblanewise can't be loaded (LANEWISE_LIBRARY names it)", text)
            self.assertIn(path, text)

    def test_library_that_is_another_one(self):
        status, text = python("import lanewise", LANEWISE_LIBRARY="libc.so.6")
        self.assertEqual(status, 1)
        self.assertIn("libc.so.6 has no lw_", text)

    def test_prototypes_are_those_of_the_headers(self):
        """Each function's arguments are as many as its header says, and each structure is as large as C has it."""
        from lanewise import _library as lib

        headers = "".join(path.read_text() for path in pathlib.Path("lib/include/lanewise").iterdir())
        for table in (lib._BLOCKING, lib._QUICK):
            for name, arguments in table.items():
                found = re.search(rf"^LW_API [^;]*?\b{name}\(([^;]*)\);", headers, re.MULTILINE)
                self.assertTrue(found, name)
                declared = [a for a in found[1].split(",") if a.strip() != "void"]
                self.assertEqual(len(arguments), len(declared), name)
        structures = {
            "lw_engine_opts": lib.EngineOpts,
            "lw_setting": lib.Setting,
            "lw_segment_range": lib.Range,
            "lw_batch_status": lib.BatchStatus,
            "lw_task_status": lib.TaskStatus,
            "lw_note": lib.Note,
            "lw_engine_stats": lib.EngineStats,
        }
        # What lies in memory as words.
        layout = {"lw_request.timeout_ms": 32, "lw_request.op": 36, "lw_request.priority": 37, "lw_memory.access": 16}
        layout |= {"lw_memory.location": 24}
        sizes = {"lw_request": 40, "lw_memory": 32}
        for name, ours in structures.items():
            sizes[name] = ctypes.sizeof(ours)
            layout |= {f"{name}.{field}": getattr(ours, field).offset for field, _ in ours._fields_}
        source = "#include <lanewise/lanewise.h>\n"
        for name, size in sizes.items():
            source += f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");\n'
        for field, offset in layout.items():
            place = field.replace(".", ", ")
            source += f'_Static_assert(__builtin_offsetof(struct {place}) == {offset}, "{field}");\n'
        for number, reason in enumerate(lanewise.REASONS):
            source += f'_Static_assert(LW_REASON_{reason.upper()} == {number}, "{reason}");\n'
        source += f'_Static_assert(LW_REASON_COUNT == {len(lanewise.REASONS)}, "reasons");\n'
        done = subprocess.run(
            ["cc", "-Ilib/include", "-fsyntax-only", "-Wno-unused", "-x", "c", "-"],
            input=source,
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class InMooncakesPlace(unittest.TestCase):
    USE = "from mooncake.engine import TransferEngine; print(TransferEngine.__module__)"

    def setUp(self):
        """A real one, as far as anybody can see."""
        self.real = tempfile.TemporaryDirectory()
        self.addCleanup(self.real.cleanup)
        os.mkdir(os.path.join(self.real.name, "mooncake"))
        for name in ("__init__", "engine"):
            with open(os.path.join(self.real.name, "mooncake", f"{name}.py"), "w", encoding="utf-8") as file:
                file.write("class TransferEngine: pass\n")
        self.own = os.environ["PYTHONPATH"]

    def test_nothing_unless_it_is_asked_for(self):
        status, text = python("import lanewise, lanewise.mooncake\n" + self.USE)
        self.assertEqual(status, 1)
        self.assertIn("No module named 'mooncake'", text)

    def test_install(self):
        self.assertEqual(
            python("import lanewise.mooncake; lanewise.mooncake.install(); lanewise.mooncake.install()\n" + self.USE),
            (0, "lanewise.mooncake.engine\n"),
        )
        status, text = python("import lanewise.mooncake; lanewise.mooncake.install(); import mooncake.store")
        self.assertIn("No module named 'mooncake.store'", text)
        self.assertEqual(status, 1)

    def test_install_beside_a_real_one(self):
        both = f"{self.own}:{self.real.name}"
        for before in ("", "import mooncake.engine\n"):
            program = before + "import lanewise.mooncake; lanewise.mooncake.install({})\n" + self.USE
            status, text = python(program.format(""), PYTHONPATH=both)
            self.assertEqual(status, 1)
            self.assertIn("a mooncake is installed already", text)
            self.assertEqual(
                python(program.format("replace=True"), PYTHONPATH=both), (0, "lanewise.mooncake.engine\n")
            )

    def test_folder_in_the_path(self):
        self.assertEqual(python("import lanewise.mooncake as m; print(m.path())"), (0, SHIM + "\n"))
        for path in (SHIM, f"{SHIM}:{self.own}", f"{self.own}:{SHIM}"):
            self.assertEqual(python(self.USE, PYTHONPATH=path), (0, "lanewise.mooncake.engine\n"))

    def test_folder_in_the_path_before_a_real_one(self):
        both = f"{SHIM}:{self.own}:{self.real.name}"
        status, text = python(self.USE, PYTHONPATH=both)
        self.assertEqual(status, 1)
        self.assertIn(f"there is a mooncake in {self.real.name}/mooncake too", text)
        self.assertEqual(
            python(self.USE, PYTHONPATH=both, LANEWISE_MOONCAKE="replace"), (0, "lanewise.mooncake.engine\n")
        )
        self.assertEqual(
            python(self.USE, PYTHONPATH=f"{self.real.name}:{SHIM}:{self.own}"), (0, "mooncake.engine\n")
        )


class Native(unittest.TestCase):
    def setUp(self):
        self.here = lanewise.Engine("127.0.0.1")
        self.there = lanewise.Engine("127.0.0.1", settings={"notify_queue": 1, "tcp_splice_bytes": 0, "eal": False})
        self.addCleanup(self.here.close)
        self.addCleanup(self.there.close)

    def test_write_read_and_objects_of_all_kinds(self):
        local, remote = bytearray(RANDOM.randbytes(SIZE)), mmap.mmap(-1, SIZE)
        back = numpy.zeros(SIZE, numpy.uint8) if numpy is not None else bytearray(SIZE)
        with self.here.register(local, access=lanewise.ACCESS_LOCAL) as source, self.there.register(remote) as target:
            with self.here.open(self.there.name) as segment, self.here.register(back, SIZE // 2) as half:
                self.assertEqual(segment.ranges(), [(target.addr, SIZE, lanewise.ACCESS_REMOTE)])
                segment.probe()
                self.assertEqual(self.here.write(segment, source.addr, target.addr, SIZE), SIZE)
                self.assertEqual(remote[:], local)
                self.assertEqual(self.here.read(segment, half.addr, target.addr, SIZE // 2), SIZE // 2)
                self.assertEqual(bytes(back[: SIZE // 2]), local[: SIZE // 2])
                with self.here.submit(
                    lanewise.WRITE, segment, [source.addr] * 3, [target.addr + i for i in range(3)], [1] * 3, bulk=True
                ) as batch:
                    self.assertIn(batch.status().state, (0, lanewise.COMPLETED))
        self.assertEqual(self.here.stats()["live_buffers"] + self.here.stats()["live_segments"], 0)
        self.assertEqual(self.here.stats()["requests"], 5)

    def test_segment_for_one_driver(self):
        local, remote = bytearray(RANDOM.randbytes(SIZE)), bytearray(SIZE)
        with self.here.register(local) as source, self.there.register(remote) as target:
            with self.here.open(self.there.name) as best, self.here.open(self.there.name, via="tcp") as tcp:
                self.assertNotEqual(best.handle, tcp.handle)
                self.assertEqual(self.here.write(tcp, source.addr, target.addr, SIZE), SIZE)
                self.assertEqual(remote, local)
        with self.assertRaisesRegex(lanewise.Error, "no driver .pigeon."):
            self.here.open(self.there.name, via="pigeon")

    def test_memory_stays_alive_while_it_is_registered(self):
        class Kept(bytearray):
            pass

        memory = Kept(SIZE)
        gone = weakref.ref(memory)
        buffer = self.there.register(memory)
        addr = buffer.addr
        del memory, buffer
        gc.collect()
        self.assertIsNotNone(gone())
        source = self.here.register(bytearray(b"abc"))
        with self.here.open(self.there.name) as segment:
            self.here.write(segment, source.addr, addr, 3)
        self.assertEqual(gone()[:3], b"abc")
        self.there.close()
        del self.there
        self.doCleanups()
        gc.collect()
        self.assertIsNone(gone())

    def test_memory_that_will_not_do(self):
        with self.assertRaisesRegex(ValueError, "can't be written"):
            self.here.register(b"constant")
        with self.assertRaisesRegex(TypeError, "needs a length"):
            self.here.register(4096)
        with self.assertRaisesRegex(ValueError, "10 bytes, not 11"):
            self.here.register(bytearray(10), 11)
        with self.assertRaises(lanewise.Error) as caught:
            self.here.register(-1 & (1 << 64) - 1, 4096)
        self.assertIn("wrap", str(caught.exception))

    def test_errors_say_why(self):
        source = self.here.register(bytearray(SIZE))
        target = self.there.register(bytearray(SIZE), access=lanewise.ACCESS_READ)
        with self.assertRaises(lanewise.Error) as caught:
            self.here.open("127.0.0.1:1")
        self.assertEqual(caught.exception.errno, 111)
        with self.here.open(self.there.name) as segment:
            with self.assertRaises(lanewise.TransferError) as caught:
                self.here.write(segment, source.addr, target.addr, 10)
            self.assertEqual((caught.exception.reason, caught.exception.failed), ("remote_range", 1))
            with self.assertRaises(ValueError):
                self.here.submit(lanewise.READ, segment, [1], [1, 2], [3])
            with self.assertRaises(ValueError):
                self.here.submit(lanewise.READ, segment, *[range(600000)] * 3)
        with self.assertRaises(lanewise.Error) as caught:
            lanewise.Engine("127.0.0.1", settings={"no_such_setting": 1})
        self.assertIn("no_such_setting", str(caught.exception))

    def test_wait_that_is_over_cancel_and_what_was_dropped(self):
        fake = FakeTarget(size=SIZE)
        fake.data.serve = rest
        self.addCleanup(fake.close)
        source = self.here.register(bytearray(SIZE))
        with self.here.open(fake.name) as segment:
            batch = self.here.submit(lanewise.WRITE, segment, [source.addr], [fake.BASE], [10])
            with self.assertRaises(TimeoutError):
                batch.wait(0.2)
            batch.cancel()
            self.assertEqual(batch.wait(5).failed, 1)
            self.assertEqual(batch.failed(), {0: "canceled"})
            batch.free()
            batch.free()
            batch = self.here.submit(lanewise.WRITE, segment, [source.addr], [fake.BASE], [10])
            del batch

            def swept():
                self.here.submit(lanewise.WRITE, segment, [], [], []).free()
                return self.here.stats()["live_batches"] == 0

            self.assertTrue(eventually(swept))
            with self.assertRaises(ZeroDivisionError):
                with self.here.submit(lanewise.WRITE, segment, [source.addr], [fake.BASE], [10]):
                    raise ZeroDivisionError
            self.assertEqual(self.here.stats()["live_batches"], 0)

    def test_more_batches_than_there_is_room_for_wait_for_it(self):
        """A full engine is no error: whoever has too much under way is held up."""
        source, target = self.here.register(bytearray(SIZE)), self.there.register(bytearray(SIZE))
        with lanewise.Engine("127.0.0.1", settings={"max_tasks": 1024, "max_batches": 16, "ring_size": 16}) as small:
            own = small.register(bytearray(SIZE))
            with small.open(self.there.name) as segment:
                for _ in range(100):
                    batch = small.submit(
                        lanewise.WRITE, segment, [own.addr] * 300, [target.addr] * 300, [8] * 300, timeout=20
                    )
                    del batch  # what is dropped is ended
                self.assertEqual(small.write(segment, own.addr, target.addr, SIZE, timeout=20), SIZE)
        self.assertEqual(crc(bytes(source.length)), crc(bytes(SIZE)))

    def test_notes(self):
        with self.here.open(self.there.name) as segment:
            segment.notify("name", "text \u20ac \udc80")
            with self.assertRaises(lanewise.Error) as caught:
                segment.notify("a", "b")
            self.assertEqual(caught.exception.errno, 105)
            self.assertEqual([(n.name, n.text) for n in self.there.notes()], [("name", "text \u20ac \udc80")])
            self.assertEqual(self.there.notes(), [])
            segment.notify("a\0b", "c\0")
            self.assertEqual([(n.name, n.text) for n in self.there.notes()], [("a\0b", "c\0")])

    def test_what_an_engine_tells(self):
        self.assertEqual(self.here.name, f"127.0.0.1:{self.here.port}")
        self.assertEqual(self.there.config()["notify_queue"]["value"], 1)
        self.assertIn("matrix", self.here.topology())
        self.assertIn("drivers", self.here.info())
        self.here.close()
        self.here.close()
        with self.assertRaises(lanewise.Error) as caught:
            self.here.stats()
        self.assertEqual(caught.exception.errno, 108)


if __name__ == "__main__":
    main()
