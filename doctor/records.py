"""`dataclass(frozen=True)` at a fifth of its price: what `dataclasses` offers and this package uses of it.

Start-up is a promise (docs/adr/0005). The standard module imports `inspect` and compiles six methods per class:
for our forty classes that is three bare Python starts. Here one method is compiled and the rest is shared.
To a type checker, and to `dataclasses.fields`, `replace` and `asdict`, these are dataclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
else:
    _MISSING = object()
    _OWN = "__record_fields__"  # name → (_Field, default)
    _COMPARED = "__record_compared__"

    class _Field:
        """How a field differs from a plain one."""

        __slots__ = ("compare", "factory", "repr")

        def __init__(self, factory, repr_, compare):
            self.factory, self.repr, self.compare = factory, repr_, compare

    _PLAIN = _Field(None, True, True)

    def field(*, default_factory=None, repr=True, compare=True):
        """A field with a default made anew for each instance, or one that takes no part in `==` or `repr`."""
        return _Field(default_factory, repr, compare)

    def replace(record, **changes):
        """The same record with these fields changed."""
        return type(record)(**{**{name: getattr(record, name) for name in getattr(record, _OWN)}, **changes})

    def dataclass(*, frozen):
        """Decorator: an immutable record of the class's annotated fields."""
        assert frozen, "records are immutable"
        return _made

    def _made(cls):
        fields = {}
        for base in reversed(cls.__mro__[1:]):
            fields.update(base.__dict__.get(_OWN, {}))
        for name in cls.__annotations__:
            default = cls.__dict__.get(name, _MISSING)
            if isinstance(default, _Field):
                fields[name] = default, _MISSING
                delattr(cls, name)
            else:
                fields[name] = _PLAIN, default
        setattr(cls, _OWN, fields)
        setattr(cls, _COMPARED, [name for name, (found, _) in fields.items() if found.compare])
        cls.__init__ = _Constructor(cls)
        cls.__match_args__ = tuple(fields)
        cls.__dataclass_fields__ = _STANDARD
        cls.__setattr__ = cls.__delattr__ = _refuse
        for name, method in (("__eq__", _equal), ("__hash__", _hashed), ("__repr__", _shown)):
            if cls.__dict__.get(name) is None:  # `__hash__ = None` is what a class with an `__eq__` of its own has
                setattr(cls, name, method)
        return cls

    def _values(record):
        return tuple([getattr(record, name) for name in getattr(record, _COMPARED)])

    def _equal(self, other):
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _hashed(self):
        return hash(_values(self))

    def _shown(self):
        shown = [f"{name}={getattr(self, name)!r}" for name, (found, _) in getattr(self, _OWN).items() if found.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    class _Constructor:
        """`__init__`, compiled when it is first asked for: most commands make records of few of the classes."""

        def __init__(self, cls):
            self.cls = cls

        def __get__(self, record, cls):
            made = self.cls.__init__ = _init(self.cls, getattr(self.cls, _OWN))
            return made if record is None else made.__get__(record)

    def _init(cls, fields):
        """The constructor, compiled: records are made by the thousand."""
        scope = {"_missing": _MISSING}
        head, body = ["self"], []
        for name, (found, default) in fields.items():
            value = name
            if found.factory is not None:
                scope[f"_f_{name}"] = found.factory
                head.append(f"{name}=_missing")
                value = f"_f_{name}() if {name} is _missing else {name}"
            elif default is _MISSING:
                head.append(name)
            else:
                scope[f"_d_{name}"] = default
                head.append(f"{name}=_d_{name}")
            body.append(f"{name}={value}")
        exec(f"def __init__({', '.join(head)}): self.__dict__.update({', '.join(body)})", scope)
        scope["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
        return scope["__init__"]

    def _refuse(self, name, *value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")

    class _Standard:
        """`__dataclass_fields__`, made by the standard module when somebody asks for it."""

        def __get__(self, record, cls):
            import dataclasses

            made = {}
            for name, (found, default) in getattr(cls, _OWN).items():
                made[name] = standard = dataclasses.field(repr=found.repr, compare=found.compare)
                standard.name, standard._field_type = name, dataclasses._FIELD
                standard.type = cls.__annotations__.get(name)
                if found.factory is not None:
                    standard.default_factory = found.factory
                elif default is not _MISSING:
                    standard.default = default
            return made

    _STANDARD = _Standard()

__all__ = ["dataclass", "field", "replace"]
