"""Plain functions of every form a cut has to keep; each is called with the numbers 0 to 5 by the law of the cut.

Every one returns what it computed and may raise; nothing here knows of torch.
"""

import contextlib

LIMIT = 3
SEEN = []


def loop_with_else(n):
    total = 0
    for index in range(n):
        if index == 4:
            break
        total += index
    else:
        total = -total
    return total


def loop_with_continue(n):
    kept = []
    for index in range(n):
        if index % 2:
            continue
        kept.append(index)
        label = f"last {index}"
    return kept, (label if n else None)


def returns_in_loop(n):
    for index in range(10):
        square = index * index
        if square >= n:
            return index
        SEEN.append(square)
    return None


def nested_loops(n):
    found = []
    for row in range(n):
        for column in range(row):
            if column == 2:
                break
            if row == 3:
                continue
            found.append((row, column))
        else:
            found.append(row)
        while len(found) > 4:
            found.pop(0)
            if len(found) == 3:
                break
    return found


def while_with_walrus(n):
    count = 0
    while (rest := n - count) > 0:
        count += 1
    return count, rest


def tries(n):
    log = []
    try:
        log.append("begun")
        value = 6 // n
        log.append(value)
    except ZeroDivisionError as error:
        log.append(str(error))
        value = 0
    else:
        log.append("fine")
    finally:
        log.append("done")
    return log, value


def returns_in_try(n):
    log = []
    for index in range(n):
        try:
            if index == 2:
                return log, index
            log.append(index)
        finally:
            log.append("after")
    return log, None


def raises_in_loop(n):
    for index in range(n):
        if index == 3:
            raise ValueError(f"at {index}")
    return "none"


def catches_and_raises_again(n):
    try:
        for index in range(n):
            if index == 4:
                raise KeyError(index)
    except KeyError:
        SEEN.append(n)
        raise
    return "none"


def withs(n):
    parts = []
    with contextlib.suppress(IndexError) as nothing:
        parts.append(nothing)
        parts.append([1, 2, 3][n])
        with contextlib.nullcontext(n) as inner:
            parts.append(inner)
    return parts


def deletes(n):
    values = {"a": n, "b": 2}
    spare = n
    del values["b"], spare
    for key in list(values):
        del values[key]
    return values


def uses_global(n):
    global LIMIT
    before = LIMIT
    for _ in range(n):
        LIMIT += 1
    after, LIMIT = LIMIT, before
    return after


def unbound_until_late(n):
    for index in range(n):
        if index == 1:
            late = "set"
    if n > 1:
        return late
    return "unset"


def comprehensions(n):
    squares = [one * one for one in range(n)]
    for square in squares:
        pairs = {key: square for key in range(2)}
        flat = [one for row in [squares, [square]] for one in row if one != n]
    return (squares, pairs, flat) if n else None


def lambdas(n):
    add = lambda one, other=n: one + other  # noqa: E731
    results = []
    for index in range(n):
        twice = lambda one: one * 2  # noqa: E731
        results.append(add(twice(index)))
    return results


def inner_function(n):
    offset = 10

    def shifted(value, by=1):
        return value + by + offset

    total = 0
    for index in range(n):
        total += shifted(index)
    return total


def inner_sees_later_value(n):
    level = 1

    def read():
        return level

    for index in range(n):
        level = index * 7
        SEEN.append(read())
    return read()


def matches(n):
    match [n, n + 1]:
        case [0, rest]:
            word = f"zero {rest}"
        case [first, *others] if first < 3:
            word = f"{first} {others}"
            for one in others:
                word += str(one)
        case _:
            return "other"
    return word


def unpacks(n):
    first, *middle, last = range(n + 2)
    for left, (right, _) in zip(middle, [(1, 2)] * n, strict=False):
        first += left * right
    return first, middle, last


def augments(n):
    table = [0, 0]
    for index in range(n):
        table[index % 2] += index
        table += [index] if index > 3 else []
    return table


def all_kinds_of_arguments(n, /, other=2, *rest, key=3, **more):
    total = n + other + key
    for value in rest:
        total += value
    for value in more.values():
        total -= value
    return total


def imports(n):
    import math

    total = 0.0
    for index in range(n):
        from math import sqrt as root

        total += root(index) + math.floor(index)
    return total


def asserts(n):
    for index in range(n):
        assert index != 3, f"reached {index}"
    return n


def chained(n):
    low = high = n
    for index in range(n):
        low, high = min(low, index), max(high, index)
        text = "low" if low < index else "high" if high > index else "same"
    return low, high, text if n else ""


def several_statements_a_line(n):
    total = 0; extra = 1  # fmt: skip  # noqa: E702
    for index in range(n): total += index; extra *= 2  # fmt: skip  # noqa: E701, E702
    return total, extra


def annotated(n: int) -> int:
    total: int = 0
    unset: str  # noqa: F842
    for index in range(n):
        step: int = index
        total += step
    return total


def closes_over_loop(n):
    calls = []
    for index in range(n):
        calls.append(lambda index=index: index)
    return [call() for call in calls]


def reads_before_assigning(n):
    if n > 2:
        ready = True
    try:
        for _ in range(n):
            if ready:
                return "ready"
    except UnboundLocalError:
        return "unbound"
    return "empty"


def counter(step):
    def count(n):
        total = 0
        for _ in range(n):
            total += step
        return total

    return count


class Parent:
    def value(self, n):
        return n + 100


class Child(Parent):
    __secret = 5

    def value(self, n):
        total = super().value(n)
        for _ in range(n):
            total += self.__secret
            total = total if total < 0 else super().value(total) - 100
        return total


PLAIN = [
    loop_with_else, loop_with_continue, returns_in_loop, nested_loops, while_with_walrus, tries, returns_in_try,
    raises_in_loop, catches_and_raises_again, withs, deletes, uses_global, unbound_until_late, comprehensions, lambdas,
    inner_function, inner_sees_later_value, matches, unpacks, augments, all_kinds_of_arguments, imports, asserts,
    chained, several_statements_a_line, annotated, closes_over_loop, reads_before_assigning, counter(3),
]  # fmt: skip
