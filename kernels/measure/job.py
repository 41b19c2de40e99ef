"""The job whose attention is measured: its words with what they leave open filled in, and its mask as a function."""

from ..attention.workload import DTYPES, has_window
from ..protocol import Unavailable

#: What a call needs and a job may not say.
USUAL = {"dtype": "bfloat16", "batch_size": 1, "num_heads": 32, "head_dim_qk": 128, "seq_len_q": 4096}
#: Words that say that several sequences share a row.
PACKED = ("packing", "padding_free", "use_varlen_attn", "pack_to_max_length", "varlen_attn")
#: The share of the GPU's memory that the tensors of a call may take; scores and workspace need room as well.
SHARE = 0.4
#: Scores of a call on a CPU, which needs seconds for more.
MAX_SCORES_CPU = 1 << 22


class Job:
    """One shape. `words`: every word with its value; `assumed`: what was filled in, with the reason; `shrunk`."""

    def __init__(self, torch, request, device):
        self.torch, self.device = torch, device
        self.assumed, self.shrunk = {}, {}
        self.words = {key: value for key, value in request.items() if value is not None}
        self._fill()
        self._straighten()
        self._fit()
        self.lengths = self._valid_lengths()
        self.documents = self._documents()

    def __getitem__(self, word):
        return self.words[word]

    def get(self, word, default=None):
        """Return the value of a word, or the default."""
        return self.words.get(word, default)

    @property
    def group(self):
        """Query heads per key head."""
        return self["num_heads"] // self["num_kv_heads"]

    @property
    def scale(self):
        """The factor of the scores."""
        return self.get("scale") or self["head_dim_qk"] ** -0.5

    @property
    def offset(self):
        """Columns by which the diagonal of a causal mask lies to the right."""
        return self["seq_len_kv"] - self["seq_len_q"] if self["mask"].endswith("bottom_right") else 0

    @property
    def window(self):
        """(left, right) of a window that hides something, or None."""
        return tuple(self.words["window"]) if has_window(self.words.get("window")) else None

    @property
    def window_offset(self):
        """Columns by which the diagonal of the window lies to the right."""
        aligned = self.get("bottom_right_diagonal")
        return self.offset if aligned is None else (self["seq_len_kv"] - self["seq_len_q"]) * bool(aligned)

    @property
    def causal(self):
        """Whether the mask hides keys behind the diagonal."""
        return "causal" in self["mask"]

    @property
    def padded(self):
        """Whether keys at the end of a sequence do not count."""
        return self["mask"].startswith("padding")

    @property
    def packed(self):
        """Whether several sequences share a row."""
        return self.documents is not None

    @property
    def alibi(self):
        """Whether scores get the linear bias of ALiBi."""
        return self.get("bias") == "alibi"

    @property
    def backward(self):
        """Whether the job takes gradients of q, k and v."""
        return bool(self["training"]) and not self.get("qkv_frozen")

    def _fill(self):
        words = self.words
        for word, value in USUAL.items():
            if word not in words:
                words[word], self.assumed[word] = value, "the job does not say it: {}".format(value)
        words.setdefault("head_dim_v", words["head_dim_qk"])
        words.setdefault("num_kv_heads", words["num_heads"])
        words.setdefault("seq_len_kv", words["seq_len_q"])
        words.setdefault("training", True)
        words.setdefault("mask", "no_mask")
        if words["dtype"] not in DTYPES:
            raise Unavailable("this program does not measure dtype {}".format(words["dtype"]))
        if words["num_heads"] % words["num_kv_heads"]:
            raise ValueError("num_heads {num_heads} is no multiple of num_kv_heads {num_kv_heads}".format(**words))
        layout = str(words.get("qkv_layout") or "bshd")
        if words.get("qkv_interleaved") or (not layout.startswith(("bshd_bshd", "t")) and layout != "bshd"):
            self.assumed["qkv_layout"] = "measured with q, k and v apart, each as (batch, sequence, heads, width)"
        bias = words.get("bias") or "no_bias"
        if bias not in ("no_bias", "alibi"):
            raise Unavailable("this program measures no bias {}".format(bias))

    def _straighten(self):
        """Write masks that hide the same in one way, and leave out windows that hide nothing."""
        words = self.words
        queries, keys = words["seq_len_q"], words["seq_len_kv"]
        if words["mask"] == "causal" and queries < keys and words.get("inference_kv_cache"):
            words["mask"] = "causal_bottom_right"
            self.assumed["mask"] = "the last query sees the whole KV cache"
        if words["mask"].endswith("_bottom_right") and queries == keys:
            words["mask"] = words["mask"][: -len("_bottom_right")]
        if words["mask"] == "causal_bottom_right" and queries == 1:
            words["mask"] = "no_mask"
        if has_window(words.get("window")):
            left, right = words["window"]
            if words["mask"].startswith(("causal", "padding_causal")):
                right = 0
            if (left < 0 or left >= keys - 1) and (right < 0 or right >= keys - 1 or self.causal):
                words["window"] = None
            else:
                words["window"] = [left, right]

    def _fit(self):
        """Make the job smaller where its tensors do not fit into memory, or would take minutes on a CPU."""
        words, before = self.words, dict(self.words)
        room = SHARE * self.torch.cuda.mem_get_info(self.device)[0] if self.device.startswith("cuda") else float("inf")
        while self.tensor_bytes() > room or (self.device == "cpu" and self._scores() > MAX_SCORES_CPU):
            if words["batch_size"] > 1:
                words["batch_size"] //= 2
            elif words["num_kv_heads"] > 1 and words["num_kv_heads"] % 2 == 0:
                words["num_heads"] //= 2
                words["num_kv_heads"] //= 2
            elif max(words["seq_len_q"], words["seq_len_kv"]) > 256:
                same = words["seq_len_q"] == words["seq_len_kv"]
                word = "seq_len_q" if words["seq_len_q"] > words["seq_len_kv"] else "seq_len_kv"
                words[word] //= 2
                if same:
                    words["seq_len_q"] = words["seq_len_kv"]
            else:
                break
        self.shrunk = {key: [before[key], words[key]] for key in before if before[key] != words[key]}

    def tensor_bytes(self):
        """Return the bytes of q, k, v and the output, and in training of their gradients."""
        words = self.words
        queries = words["num_heads"] * words["seq_len_q"]
        keys = words["num_kv_heads"] * words["seq_len_kv"]
        numbers = words["batch_size"] * (queries + keys) * (words["head_dim_qk"] + words["head_dim_v"])
        return numbers * (4 if words["dtype"] == "float32" else 2) * (2 if words["training"] else 1)

    def _scores(self):
        words = self.words
        return words["batch_size"] * words["num_heads"] * words["seq_len_q"] * words["seq_len_kv"]

    def _valid_lengths(self):
        """Return the keys that count in each sequence of a padded batch: from all of the length down to half."""
        if not self["mask"].startswith("padding"):
            return None
        total, batch = self["seq_len_kv"], self["batch_size"]
        self.assumed["padding"] = "the sequences are from half of the length to all of it"
        return [total - (total // 2) * index // batch for index in range(batch)]

    def _documents(self):
        """Return the lengths of the sequences that share each row of a packed batch, or None."""
        named = str(self.get("qkv_layout") or "").startswith("t")
        if not named and not any(self.get(word) for word in PACKED):
            return None
        if self["seq_len_q"] != self["seq_len_kv"] or self.padded:
            raise Unavailable("this program packs sequences of equal lengths of queries and keys, without padding")
        total = self["seq_len_q"]
        parts = [total // 2, total // 4, total // 8]
        self.assumed["packing"] = "a row holds sequences of a half, a quarter and two eighths of its length"
        return [part for part in [*parts, total - sum(parts)] if part]

    def segments(self):
        """Return [(queries, keys)] of the sequences that a call with variable lengths gets, row by row."""
        if self.packed:
            return [(length, length) for _ in range(self["batch_size"]) for length in self.documents]
        if self.padded:
            if self["seq_len_q"] == self["seq_len_kv"]:
                return [(length, length) for length in self.lengths]
            return [(self["seq_len_q"], length) for length in self.lengths]
        return [(self["seq_len_q"], self["seq_len_kv"])] * self["batch_size"]

    def mask_function(self):
        """Return function(batch, head, query, key) -> whether the query sees the key; None where it sees all.

        It takes tensors of indices that broadcast, so the same function makes dense masks and block masks.
        """
        torch, tests = self.torch, []
        if self.causal:
            offset = self.offset
            tests.append((lambda b, h, q, k: k <= q + offset) if offset else (lambda b, h, q, k: k <= q))
        if self.window:
            (left, right), shift = self.window, self.window_offset
            if left >= 0:
                tests.append(lambda b, h, q, k: k >= q + (shift - left))
            if right >= 0 and not (self.causal and shift == self.offset):
                tests.append(lambda b, h, q, k: k <= q + (shift + right))
        if self.padded:
            lengths = torch.tensor(self.lengths, device=self.device)
            tests.append(lambda b, h, q, k: k < lengths[b])
        if self.packed:
            ids = torch.repeat_interleave(torch.tensor(self.documents)).to(self.device)
            tests.append(lambda b, h, q, k: ids[q] == ids[k])
        if self["mask"] == "arbitrary":
            self.assumed["mask"] = "70 % of the keys count, drawn at random"
            generator = torch.Generator(self.device).manual_seed(7)
            shape = (self["seq_len_q"], self["seq_len_kv"])
            drawn = torch.rand(shape, generator=generator, device=self.device) < 0.7
            drawn[:, 0] = True
            tests.append(lambda b, h, q, k: drawn[q, k])
        if not tests:
            return None
        first, *more = tests
        if not more:
            return first

        def visible(b, h, q, k):
            keep = first(b, h, q, k)
            for test in more:
                keep = keep & test(b, h, q, k)
            return keep

        return visible

    def dense_mask(self, rows=None, entry=None):
        """Return a boolean mask [batch or 1, 1, queries, keys], True where a query sees a key; None if it sees all.

        `rows`: only these queries; `entry`: only this entry of the batch.
        """
        torch, visible = self.torch, self.mask_function()
        if visible is None:
            return None
        device = self.device
        q = torch.arange(self["seq_len_q"], device=device) if rows is None else rows
        k = torch.arange(self["seq_len_kv"], device=device)
        if entry is not None:
            b = torch.tensor([entry], device=device)
        else:
            b = torch.arange(self["batch_size"] if self.padded else 1, device=device)
        b, h = b.view(-1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
        return visible(b, h, q.view(1, 1, -1, 1), k.view(1, 1, 1, -1)).expand(len(b), 1, len(q), len(k))

    def slopes(self):
        """Return the slopes of ALiBi, float32, one per head."""
        heads = self["num_heads"]
        return 2.0 ** (-8.0 / heads * self.torch.arange(1, heads + 1, device=self.device, dtype=self.torch.float32))

    def alibi_bias(self, heads, rows=None):
        """Return the bias [1, heads, queries, keys] in float32: the slope times the distance of the key."""
        torch = self.torch
        q = torch.arange(self["seq_len_q"], device=self.device) if rows is None else rows
        k = torch.arange(self["seq_len_kv"], device=self.device)
        shift = self["seq_len_kv"] - self["seq_len_q"]
        distance = (k.view(1, -1) - (q.view(-1, 1) + shift)).abs().neg().float()
        return distance.unsqueeze(0).mul(self.slopes()[heads].view(-1, 1, 1)).unsqueeze(0)

    def pairs(self):
        """Return how many (query, key) pairs of one head count, over the batch."""
        if self.mask_function() is None:
            return self["batch_size"] * self["seq_len_q"] * self["seq_len_kv"]
        torch, total = self.torch, 0
        step = max(1, (1 << 27) // self["seq_len_kv"])
        for entry in range(self["batch_size"] if self.padded else 1):
            for first in range(0, self["seq_len_q"], step):
                rows = torch.arange(first, min(first + step, self["seq_len_q"]), device=self.device)
                total += int(self.dense_mask(rows, entry).sum())
        return total if self.padded else total * self["batch_size"]

    def tensors(self, seed=0):
        """Return q, k, v and the incoming gradient as a model has them.

        They are views (batch, heads, sequence, width) of tensors that lie as (batch, sequence, heads, width).
        """
        torch, words = self.torch, self.words
        generator = torch.Generator(self.device).manual_seed(seed)

        def drawn(heads, length, width):
            shape = (words["batch_size"], length, heads, width)
            dtype = getattr(torch, words["dtype"])
            return torch.randn(shape, generator=generator, device=self.device, dtype=dtype).transpose(1, 2)

        q = drawn(words["num_heads"], words["seq_len_q"], words["head_dim_qk"])
        k = drawn(words["num_kv_heads"], words["seq_len_kv"], words["head_dim_qk"])
        v = drawn(words["num_kv_heads"], words["seq_len_kv"], words["head_dim_v"])
        dout = drawn(words["num_heads"], words["seq_len_q"], words["head_dim_v"])
        if self.padded and words["seq_len_q"] == words["seq_len_kv"]:
            for entry, length in enumerate(self.lengths):  # no gradient comes in where no output counts
                dout[entry, :, length:] = 0
        return q, k, v, dout
