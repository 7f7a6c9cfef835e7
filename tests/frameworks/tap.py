# SPDX-License-Identifier: Apache-2.0
"""Run the unittest cases of one file and print TAP, for tests/run.sh: tap.py FILE [PATTERN]"""

import importlib.util
import os
import sys
import time
import traceback
import unittest


class Tap(unittest.TestResult):
    """Prints a line when a case has ended. What a failure says is below it."""

    number = 0
    bad = None

    def startTest(self, test):
        super().startTest(test)
        self.begin, self.bad, self.why = time.monotonic(), [], None

    def addFailure(self, test, err):
        text = "".join(traceback.format_exception(*err))
        if self.bad is None:  # of a class or the module, outside of any case
            print("not ok - " + str(test) + "\n    " + text.replace("\n", "\n    "), flush=True)
        else:
            self.bad.append(text)

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            print(f"# fails: {subtest._subDescription()}", flush=True)  # its text comes at the end of the case
            self.bad.append(f"{subtest._subDescription()}\n" + "".join(traceback.format_exception(*err)))

    def addSkip(self, test, reason):
        self.why = reason

    def stopTest(self, test):
        super().stopTest(test)
        type(self).number += 1
        name = test.id().rpartition(".")[2].replace("test_", "", 1)
        skip = f" # SKIP {self.why}" if self.why is not None and not self.bad else ""
        print(f"{'not ok' if self.bad else 'ok'} {self.number} - {name}{skip}")
        for text in self.bad:
            print("\n".join("    " + line for line in text.splitlines()))
        print(f"# {time.monotonic() - self.begin:.1f} s", flush=True)
        self.bad = None


def main():
    path = os.path.abspath(sys.argv[1])
    sys.path.insert(0, os.path.dirname(path))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loader = unittest.TestLoader()
    if len(sys.argv) > 2:
        loader.testNamePatterns = [f"*{sys.argv[2]}*"]
    suite = loader.loadTestsFromModule(module)
    print(f"1..{suite.countTestCases()}", flush=True)
    result = Tap()
    suite.run(result)
    return 0


if __name__ == "__main__":  # not in processes of multiprocessing that read this file again
    sys.exit(main())
