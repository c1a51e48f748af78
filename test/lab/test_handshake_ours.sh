#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Our engine begins the queue pair handshake with a peer of the reference's kind.
exec bash test/lab/handshake.sh WeAsk
