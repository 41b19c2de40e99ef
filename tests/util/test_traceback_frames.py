"""The last frame of a traceback, in the forms of Python, IPython, Colab and Rich."""

import pytest

from doctor.util.traceback_frames import last_frame

PEFT = "/x/site-packages/peft/tuners/lora/model.py"


@pytest.mark.parametrize(
    "frame",
    [
        f'  File "{PEFT}", line 7, in build\n',
        f"File {PEFT}:342, in LoraModel.build(self)\n",
        f"{PEFT} in build(self, name)\n--> 342 call()\n",
        f"{PEFT} in <module>\n",
        f"[{PEFT}](https://localhost:8080/#) in build(self)\n-> 1 call()\n",
        f"│ {PEFT}:342 in build │\n",
    ],
)
def test_the_file_of_a_frame(frame):
    assert last_frame(frame).lstrip("[") == PEFT


@pytest.mark.parametrize("text", ["see model.py in the docs", "edit /srv/a.py in your editor (vim)", "model.py"])
def test_a_path_in_a_sentence_is_no_frame(text):
    assert last_frame(text) == ""
