# SPDX-License-Identifier: Apache-2.0
"""A middlebox for the tests beside: relays connections to a port, late if asked to, and ends those that are idle."""

import asyncio
import random
import socket
import struct
import threading
import time

FIN, RST, SILENCE = "FIN", "RST", "silence"


class Relay:
    """127.0.0.1:port leads to 127.0.0.1:target.

    A connection that was idle for idle seconds ends as how says: with FIN, with RST, or in silence: both ends keep
    theirs, what they send is confirmed and thrown away. late: each piece is held back for up to so many seconds, in
    order.
    """

    def __init__(self, target, idle=None, how=FIN, late=0, seed=0):
        self.target, self.idle, self.how, self.late = target, idle, how, late
        self.random = random.Random(seed)
        self.ended = 0  # because they were idle
        self.accepted = 0
        self.tasks = set()
        self.loop = asyncio.new_event_loop()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.server = self.loop.run_until_complete(asyncio.start_server(self._serve, sock=self.listener))
        self.loop.run_forever()
        self.server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.05))
        self.loop.close()

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)  # the loop's own references are weak
        task.add_done_callback(self.tasks.discard)
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, far_writer)
        for end in ends:
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        state = {"used": time.monotonic(), "forgotten": False}
        pumps = [
            self.loop.create_task(self._pump(reader, far_writer, state)),
            self.loop.create_task(self._pump(far_reader, writer, state)),
        ]
        try:
            while not all(pump.done() for pump in pumps):
                left = None
                if self.idle and not state["forgotten"]:
                    left = state["used"] + self.idle - time.monotonic()
                    if left <= 0:
                        self.ended += 1
                        if self.how == SILENCE:
                            state["forgotten"] = True
                            continue
                        break
                await asyncio.wait(pumps, timeout=left)
        except asyncio.CancelledError:
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                self._end(end)

    def _end(self, writer):
        if self.how == RST:
            linger = struct.pack("ii", 1, 0)
            try:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            except OSError:
                pass
            writer.transport.abort()
        else:
            writer.close()

    async def _pump(self, reader, writer, state):
        try:
            while data := await reader.read(1 << 16):
                if state["forgotten"]:
                    continue
                state["used"] = time.monotonic()
                if self.late:
                    await asyncio.sleep(self.random.uniform(0, self.late))
                writer.write(data)
                await writer.drain()
            if not state["forgotten"]:
                writer.write_eof()
        except OSError:
            writer.transport.abort()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
