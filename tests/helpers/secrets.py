"""Texts that hold a secret in each of its usual shapes, and ordinary texts that only look like one."""

from __future__ import annotations

#: Name -> a text with the secret as `{}`. A secret has 20 characters: small and large letters, and digits.
SHAPES = {
    "option": "vllm serve --hf-token {}", "option with =": "run --api-key={} now", "password option": "--password {}",
    "option in a list": "Command '['vllm', '--api-key', '{}']' failed", "assignment": "password={}",
    "prefixed assignment": "hf_token={}", "quoted assignment": "secret='{}'",
    "spaced assignment": "client_secret = {}", "call": "login(token='{}')", "json": "{{\"api_key\": \"{}\"}}",
    "json in json": "\"{{\\\"token\\\": \\\"{}\\\"}}\"", "yaml": "token: {}", "yaml with prefix": "db_password: {}",
    "camel case": "dbPassword={}", "phrase": "passphrase={}", "quoted phrase": "password: 'x {} y'",
    "shell variable": "export NVTE_BEARER={}", "signing key": "VLLM_SIGNKEY={}",
    "variable of docker": "--build-arg HF_TOKEN={}", "database": "AccountKey={}==;EndpointSuffix=x",
    "header": "Authorization: Bearer {}", "basic header": "Authorization: Basic {}",
    "token header": "authorization: token {}", "own header": "X-Api-Key: {}", "bearer alone": "curl -H 'bearer {}'",
    "cookie": "Cookie: {}", "user in an address": "https://bob:{}@h.example/x",
    "token in an address": "https://{}@h.example/x", "git": "git+https://u:{}@h.example/x",
    "collapsed address": "git+https:/u:{}@h/x", "curl": "curl -u bob:{} https://h",
    "conda": "https://conda.anaconda.org/t/{}/org", "fragment": "https://h.example/x.whl#sha256=ab&auth={}",
    "query": "https://h.example/x?token={}&y=1", "signature": "https://h.example/x?sig={}",
    "amazon": "https://h.example/x?a=1&X-Amz-Signature={}", "google": "https://h.example/x?X-Goog-Signature={}",
    "key in a query": "https://h.example/x?key={}", "path of a token": "https://h.example/token/{}/simple",
    "random path": "https://dl.example.io/{}/org/python", "slack hook": "https://hooks.slack.com/services/T0/B0/{}",
    "discord hook": "https://discord.com/api/webhooks/1/{}",
    "office hook": "https://x.webhook.office.com/webhookb2/{}/y", "npm": "//registry.example/:_authToken={}",
    "xml": "<password>{}</password>", "netrc": "machine h login bob password {}", "docker": "{{\"auth\": \"{}\"}}",
    "aws secret": "aws_secret_access_key = {}", "connection": "db.connectionstring={}",
    "pem": "-----BEGIN RSA PRIVATE KEY----- {} -----END RSA PRIVATE KEY-----", "github": "ghp_{}",
    "github fine": "github_pat_{}", "gitlab": "glpat-{}", "hugging face": "hf_{}", "openai": "sk-proj-{}",
    "slack": "xoxb-{}", "npm token": "npm_{}", "nvidia": "nvapi-{}", "pypi": "pypi-Ag{}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.{}.x", "google key": "AIzaSyA0123456789{}", "stripe": "sk_live_{}", "groq": "gsk_{}",
    "docker token": "dckr_pat_{}",
}  # fmt: skip
#: Secrets whose letters are not free.
FIXED = (
    "AKIAA1B2C3D4E5F6G7H8", "wandb login 0a1b2c3d4e0a1b2c3d4e0a1b2c3d4e0a1b2c3d4e",
    "dapi0a1b2c3d4e0a1b2c3d4e0a1b2c3d4e0a",
)  # fmt: skip

ORDINARY = (
    "max_tokens=4096", "num_tokens: 12", "--max-num-batched-tokens 8192", "eos_token='</s>'", "pad_token: <pad>",
    "token_type_ids", "input_ids, token_type_ids = batch", "--eos-token </s>", "next token: the",
    "unexpected token: foo", "special token: abc", "tokens/s: 3021.5", "tokenizer: LlamaTokenizerFast",
    "bos_token_id=1", "image_token='<image>'", "prompt_tokens=[1, 2, 3]", "tokens_per_second=31.5",
    "def login(token: str = None)", "login(token=hf_token)", "token=os.environ['HF_TOKEN']", "token=get_token()",
    "token: Optional[str] = None", "token=self.token",
    "TypeError: __init__() got an unexpected keyword argument 'token'", "Using token: True", "HF_TOKEN is not set",
    "HF_TOKEN=$HF_TOKEN", "--token TOKEN", "--set env.KEY=VALUE", "Author: Tri Dao", "author=tri",
    "authors: vLLM team", "PWD=/workspace/job", "pwd: /workspace", "secretKeyRef: {name: hub}", "the key: value",
    "past_key_values: None", "triton_key: abcd", "q_key=1", "cache_key=abc123", "registry auth: none",
    "key=torch.version", "attention_key: q",
    "--hash=sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", "commit 0a1b2c3d4e0a1b2c3d4e0a1b2c3d4e0a1b2c3d4e",
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    "https://discuss.pytorch.org/t/flash-attention-is-slow/12345",
    "nvcr.io/nvidia/pytorch:24.10-py3@sha256:0a1b2c3d4e",
    "https://github.com/Dao-AILab/flash-attention/blob/v2.7.4/hopper/hooks/test.py#L10", "pkg:pypi/torch@2.6.0",
    "https://files.example.org/packages/ab/cd/0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab/torch-2.6.0.whl",
    "ssh://git@github.com/x/y", "git+https://${TOKEN}@github.com/x", "flash-attn @ git+https://github.com/x/y@v2.7.4",
    "GPU-9f07a192-29a2-ddcd-a9f1-0b93d25c2fc6", "torch==2.6.0+cu124", "Basic Information",
    "bearer authentication failed",
    "  File \"/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py\", line 1739, in _wrapped_call_impl",
    "tensor([[0.1, 0.2]], device='cuda:0', dtype=torch.bfloat16)",
    "[rank3]: RuntimeError: CUDA error: invalid argument", "step 10/90000 | loss 2.3 | lr 3.45e-04 | 31021 tok/s",
    "password: None", "password=", "credentials: not found",
    "made with torch 2.6.0 (cuDNN 9.1.0) on an NVIDIA H100 80GB HBM3",
    "name: xformers-of-pypi-for-cuda-12-next-to-cuda-11",
)  # fmt: skip


def canary(number: int) -> str:
    """Return a made-up secret of its own for one shape."""
    return f"hunter2SECRETq{number:03d}Zx9"
