"""The last frame of a traceback, in the forms of Python, IPython, Colab and Rich."""

import pytest

from doctor.util.traceback_frames import CELL, last_frame

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


@pytest.mark.parametrize(
    "frame",
    [
        '  File "/x/site-packages/transformers/configuration_utils.py", line 263, in __getattribute__\n',
        "File /x/site-packages/transformers/configuration_utils.py:263, in Config.__getattribute__(self)\n",
    ],
)
def test_a_lookup_of_a_member_is_for_the_frame_before_it(frame):
    assert last_frame(f'  File "{PEFT}", line 7, in build\n{frame}') == PEFT


@pytest.mark.parametrize(
    "frame", ["<ipython-input-21-8c4d> in <module>\n---> 1 model.layers[0]\n", "Cell In[21], line 2\n      1 x = 1\n"]
)
def test_a_cell_of_a_notebook_is_a_frame(frame):
    assert last_frame(frame) == CELL
    assert last_frame(f"{frame}File {PEFT}:342, in LoraModel.build(self)\n") == PEFT
