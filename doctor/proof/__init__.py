"""How far a fix is proven: asked of a resolver, installed on trial, judged again, applied, taken back.

`child` runs a program, `installers` knows uv and pip, `answers` reads what they say, `resolve` asks, `trial` installs
into an environment that is thrown away, `apply` into the target, `freeze` remembers what was there, `rollback` restores
it. Whatever an installer does (fail, hang, flood, lose the network) is a step's outcome and no exception.
"""
