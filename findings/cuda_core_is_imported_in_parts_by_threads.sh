#!/usr/bin/env bash
# cuda.core imported by two threads at once: one of them gets a part of it, because its __init__ replaces its own __spec__.
#
# Expected: Python's lock of imports makes the second thread wait, as for any other package. Seen with cuda-core 1.2.2 and cuda-bindings
# 12.9.10 (x86-64 Linux, no GPU): of eight threads, those that say `import cuda.core.utils` fail with "No module named 'cuda.core.utils'"
# while the others import cuda.core; one thread alone can import it. The package copies all names of its part for CUDA 12 into
# itself, `__spec__` and `__path__` among them, and that spec says that the import has ended. On a GPU, `from cuda.core import Device`
# failed in a thread for the same reason. Importing cuda.core before the first thread starts is enough.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check cuda-core==1.2.2 cuda-bindings==12.9.10 numpy==2.3.5
cat >"$work/threads.py" <<'PYTHON'
import sys
import threading

count = int(sys.argv[1])
barrier, failures = threading.Barrier(count), []


def work(number):
    barrier.wait()
    try:
        if number % 2:
            import cuda.core
        else:
            import cuda.core.utils
    except ImportError as error:
        failures.append(str(error))


threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(failures), *sorted(set(failures)))
PYTHON
alone=$("$work/venv/bin/python" "$work/threads.py" 1)
failed=0
for _ in 1 2 3 4 5; do
    line=$("$work/venv/bin/python" "$work/threads.py" 8)
    echo "eight threads: $line"
    [ "${line%% *}" = 0 ] || failed=$((failed + 1))
done
echo "one thread: $alone"
[ "$alone" = 0 ] && [ $failed -ge 3 ] || { echo "the behaviour has changed"; exit 1; }
echo "as described: in $failed of 5 processes, threads that imported cuda.core.utils failed"
