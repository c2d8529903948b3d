#!/usr/bin/env python3
"""Writes tests/data/chat/snippets.json: small templates with what jinja2 renders for them.

The environment is the one transformers' apply_chat_template uses. Needs jinja2 3.1.6 only:
    python3 -m venv v && v/bin/pip install jinja2==3.1.6 && v/bin/python tests/data/generate_chat.py
"""

import datetime
import json
import pathlib

import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2025, 3, 7, 9, 5, 3)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(lineno)

    def _support(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


VARIABLES = {
    "messages": [
        {"role": "system", "content": "Be <brief> & \"kind\"."},
        {"role": "user", "content": "  Grüße, 世界 😀!\n second line\r\nthird  "},
        {"role": "assistant", "content": "Hi", "tags": ["b", "A", "c"], "n": 2, "x": 1.5},
        {"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]},
    ],
    "tools": [{"name": "f", "parameters": {"b": 1, "a": [True, None, 2.0, 1e30, "é<'>"], "empty": {}, "none": []}}],
    "users": [
        {"name": "Zoe", "age": 30, "addr": {"city": "Rome"}},
        {"name": "adam", "age": 25, "addr": {"city": "oslo"}},
        {"name": "Bob", "age": 30, "addr": {"city": "Rome"}},
    ],
    "s": "Hello, World",
    "uni": "aßΣσς İıǅ ﬁ 世界😀e\u0301",
    "items": [3, 1, 2],
    "big": 18446744073709551615,
    "flag": True,
    "nothing": None,
    "mix": {"items": 1, "k": [1, 2], "get": "G"},
}

EXPRESSIONS = r"""
1 + 2 * 3 ; 7 // 2 ; -7 // 2 ; 7 % 3 ; -7 % 3 ; 7 % -3 ; 7 / 2 ; 6 / 2 ; 2 ** 10 ; 2 ** -1 ; 2 ** 3 ** 2 ; -2 ** 2
7.5 // 2 ; -7.5 % 2 ; 1e3 ; 1e16 ; 1e15 ; 1.0 ; 0.1 + 0.2 ; 1e-5 ; 0.0001 ; 123456789.123 ; -0.0 ; 1_000 ; 0x1F ; 0b101 ; 0o17
True + True ; true and 'a' ; false or none ; not 0 ; not '' ; 1 < 2 < 3 ; 3 > 2 > 2 ; 1 == 1.0 ; '1' == 1 ; [1,2] == [1,2] ; (1,) == [1]
'a' < 'b' ; [1,2] < [1,3] ; 1 < 'a' ; none < 1 ; 'a' ~ 1 ~ none ~ true ~ 1.0 ; 'a' + 1 ; 1 + 'a' ; 'ab' * 3 ; [0] * 3 ; 3 * 'x' ; (1,2) + (3,)
1 / 0 ; 1 // 0 ; 1 % 0 ; 1.0 / 0 ; 9223372036854775807 ; none + 1 ; [] + () ; {} + {} ; - 'a' ; + 3 ; -none
1 if true else 2 ; 1 if false ; (1 if false) is undefined ; 'x' if nothing else 'y' ; 1 in [1,2] ; 'a' in 'cat' ; 1 in 'cat' ; 'k' in mix ; 5 not in items ; 'z' in undefinedvar
'abcdef'[5:2:-1] ; 'abcdef'[::-1] ; 'abcdef'[1:4] ; 'abcdef'[-3:] ; 'abcdef'[:-2] ; 'abcdef'[::2] ; 'abcdef'[10:] ; items[::-1] ; items[:-1] ; items[1:] ; items[-1] ; items[5] ; 'abc'[0] ; 'abc'[-1] ; 'abc'[9] ; (1,2,3)[1:]
uni[0:4] ; uni[::-1] ; uni|length ; uni[-2] ; uni[10:13] ; range(10)[2:8:3]|list ; range(5)[::-1]|list ; items[none:2] ; items['a'] ; items[1.0] ; none[0] ; none.x ; 5[0] ; nothing[1:2]
undefinedvar ; undefinedvar.x ; undefinedvar['x'] ; undefinedvar() ; undefinedvar + 1 ; undefinedvar ~ 'x' ; undefinedvar == undefinedvar2 ; undefinedvar|length ; undefinedvar|list ; undefinedvar|int ; undefinedvar|default('d') ; undefinedvar < 1 ; undefinedvar|upper ; undefinedvar|join ; undefinedvar|first ; undefinedvar is iterable ; undefinedvar is sequence ; undefinedvar is callable
mix['k'] ; mix.k ; mix.k[0] ; mix.get('k') ; mix['get'] ; mix.missing ; mix.missing.deep ; mix.get('q') ; mix.get('q', 7) ; mix.keys()|list ; mix.values()|list ; mix.items()|list ; mix.items() ; mix.keys() ; mix|items|list ; mix.copy() ; mix.pop('k') ; mix.update({}) ; items.append(1) ; items.index(2) ; items.count(1) ; items.index(9) ; mix.__class__ ; ''.__class__ ; ''.__class__.x ; mix._x ; items.pop
[1, 'a', none, true, 1.5, {'k': 'v'}, (1,), (), []] ; {'a': 1, 2: 'b', none: 3} ; {1: 'a', true: 'b', 1.0: 'c'} ; 'it\'s' ; ['it\'s', "q\"", 'both\'"', 'n\n\t\\', 'é', '\x01', '\u200b'] ; (1, 2) ; 1, 2 ; {} ; [[[]]]
messages[0] ; messages[1].content ; messages[2] ; tools ; users|length ; big ; big|string ; big > 1 ; big is integer ; [big]|tojson ; big == big
s.upper() ; s.lower() ; s.title() ; s.swapcase() ; 'ß'.upper() ; uni.upper() ; uni.lower() ; uni.title() ; uni.capitalize() ; 'ΑΣ ΑΣΑ'.lower() ; "they're bill's".title() ; 'hELLO wORLD'.capitalize() ; 'ﬁx'.capitalize()
s.split() ; s.split(',') ; s.split(', ', 1) ; ' a  b c '.split() ; ' a  b c '.split(none, 1) ; ' a  b c '.rsplit(none, 1) ; 'a,b,c'.rsplit(',', 1) ; 'a,b,c'.split(',', maxsplit=1) ; 'a'.split('') ; ''.split() ; ''.split(',') ; 'aXXbXXc'.split('XX') ; 'a,b'.split(sep=',')
'  x '.strip() ; 'xxaxx'.strip('x') ; 'abcba'.lstrip('ab') ; 'abcba'.rstrip('ab') ; '\u3000x\u00a0'.strip() ; 'äxä'.strip('ä') ; s.strip(none) ; s.strip(1)
s.startswith('He') ; s.endswith(('x', 'ld')) ; s.startswith('World', 7) ; s.startswith('') ; s.startswith(1) ; s.find('o') ; s.rfind('o') ; s.find('zz') ; s.index('W') ; s.index('zz') ; s.count('l') ; s.count('') ; uni.find('世') ; s.find('o', 5) ; s.find('o', -3, -1) ; s.count('l', 3, 5)
s.replace('l', 'L') ; s.replace('l', 'L', 1) ; s.replace('', '-') ; ''.replace('', 'x') ; 'aaa'.replace('aa', 'b') ; s.removeprefix('He') ; s.removesuffix('ld') ; s.partition(', ') ; s.rpartition('o') ; s.partition('zz') ; s.rpartition('zz')
'a\nb\r\nc\rd\x0be\u2028f'.splitlines() ; 'a\nb\n'.splitlines(true) ; '\n'.splitlines() ; ''.splitlines() ; 'x'.join(['a','b']) ; 'x'.join('abc') ; 'x'.join([1]) ; 'x'.zfill(3) ; '-5'.zfill(4) ; 'x'.center(6, '*') ; 'xy'.center(5) ; 'x'.ljust(3) ~ '|' ; 'x'.rjust(3, '.') ; 'a\tb'.expandtabs(4)
'12'.isdigit() ; '²'.isdigit() ; '½'.isnumeric() ; 'ab1'.isalnum() ; 'ab'.isalpha() ; ''.isalpha() ; '  '.isspace() ; 'AB'.isupper() ; 'ab1'.islower() ; 'Ab Cd'.istitle() ; 'é'.isascii() ; 'a_1'.isidentifier() ; 'a\n'.isprintable() ; '١'.isdecimal()
'{} {}'.format(1, 'a') ; '{0}{1}{0}'.format('a', 'b') ; '{x} {y[0]} {z.k}'.format(x=1, y=[2], z={'k': 3}) ; '{:>5}|{:<5}|{:^5}|{:*^7}'.format(1, 'a', 'b', 'c') ; '{:05d} {:+d} {:x} {:#x} {:b} {:o} {:,} {:_}'.format(42, 42, 255, 255, 5, 8, 1234567, 1234567) ; '{:.2f} {:e} {:g} {:%} {:10.3f}|'.format(3.14159, 12345.678, 0.00001, 0.25, 2.5) ; '{!r} {!s}'.format('a', 'b') ; '{{}}'.format() ; '{'.format() ; '{}'.format() ; '{a}'.format() ; '{:.2}'.format('abc') ; '{:>{w}}'.format('a', w=4) ; '{}'.format(none) ; '{:5}'.format(none) ; '{:.3}'.format(1234.5) ; '{:g}'.format(1e20) ; '{:010.2f}'.format(-3.14159) ; '{:,.2f}'.format(1234567.891) ; '{:d}'.format(true) ; '{:x}'.format(1.5) ; '{}'.format(1.0) ; '{:.0f}'.format(2.5) ; '{0}{}'.format(1)
'%s %d %5.2f %x %r %%' % ('a', 42, 3.14159, 255, 'q') ; '%s' % 1 ; '%s' % [1] ; '%(a)s-%(b)03d' % {'a': 1, 'b': 2} ; '%s %s' % ('a',) ; '%d' % 'a' ; '%s' % ('a', 'b') ; '%-5s|' % 'a' ; '%+d' % 3 ; '%e' % 12345.678 ; '%g' % 0.0001 ; '%g' % 1e10 ; '%c' % 65 ; '%.3s' % 'abcdef' ; '%05d' % -42 ; '%o' % 8 ; '%X' % 255 ; '%#x' % 255 ; '%i' % 3.7 ; '%*d' % (5, 42) ; '%.0f' % 0.5 ; '%s' % none ; '%q' % 1 ; '%s' % {'a': 1}
'a'|upper ; 'HELLO'|lower ; 'hello wORLD-foo (bar) [baz] <q>'|title ; 'hELLO'|capitalize ; ' x '|trim ; 'xxaxx'|trim('x') ; 5|upper ; 'aaa'|replace('a', 'b', 2) ; 123|replace('2', 'x') ; s|replace('o', '')|length
[1,2,3]|join ; [1,2,3]|join(', ') ; users|join(', ', attribute='name') ; 'abc'|join('-') ; mix|join ; [none, true]|join('|') ; 5|join
items|first ; items|last ; []|first ; []|last ; 'abc'|first ; 'abc'|last ; mix|first ; items|length ; mix|length ; 'abc'|count ; 5|length ; none|length ; 'abc'|list ; mix|list ; (1,2)|list ; 5|list ; range(3)|list ; range(1, 10, 3)|list ; range(5, 0, -2)|list ; range(3) ; range(0) ; range(1,2,0) ; range(1000000) ; range('a') ; range(2, 5)[1]
items|sort ; items|sort(reverse=true) ; ['b','A','c']|sort ; ['b','A','c']|sort(case_sensitive=true) ; users|sort(attribute='name')|map(attribute='name')|list ; users|sort(attribute='age,name')|map(attribute='name')|list ; users|sort(attribute='addr.city')|map(attribute='name')|list ; [1,'a']|sort ; users|sort(true, attribute='age')|map(attribute='name')|join(',')
['a','A','b']|unique|list ; ['a','A','b']|unique(true)|list ; users|unique(attribute='age')|map(attribute='name')|list ; items|reverse|list ; 'abc'|reverse ; 5|reverse ; items|sum ; users|sum(attribute='age') ; [0.1,0.2]|sum ; ['a']|sum ; [[1],[2]]|sum(start=[]) ; items|min ; items|max ; []|max ; users|max(attribute='age') ; ['b','A']|min ; [1,'a']|max
5|abs ; -5|abs ; -5.5|abs ; 'a'|abs ; 2.5|round ; 3.5|round ; 42.55|round(1) ; 2.675|round(2) ; 42.55|round(1, 'floor') ; 42.51|round(1, 'ceil') ; 42|round ; 1234.5|round(-2) ; 42|round(1, 'ceil') ; 42.7|round|int ; 1|round(1, 'x') ; '42'|int ; '42.7'|int ; 'x'|int ; 'x'|int(7) ; '0x1F'|int(base=16) ; 'ff'|int(0, 16) ; '0b11'|int(0, 2) ; 3.9|int ; -3.9|int ; true|int ; none|int ; [1]|int ; ' 12 '|int ; '1_000'|int ; '1.5'|float ; 'x'|float ; 3|float ; 'inf'|float ; '1e5'|float ; none|float ; 'nan'|int ; '1e400'|float
5|string ; none|string ; [1]|string ; 1.0|string ; true|string ; 'a<b>'|escape ; 'a<b>'|e ; '&\'"'|e ; 5|e ; 'a<b>'|safe ; '<a>'|safe + '<b>' ; '<b>' + '<a>'|safe ; ('<a>'|safe) ~ '<b>' ; '<a>'|e|e ; ('%s'|safe) % '<x>' ; ('{}'|safe).format('<x>') ; ('<a>'|safe).upper() + '<b>' ; ['<a>'|safe] ; ('<a>'|safe) is escaped ; '<a>'|safe|string + '<b>' ; ('-'|safe).join(['<', '>']) ; '<a>'|forceescape
tools|tojson ; tools|tojson(indent=2) ; 'é<\'">&\n\t\x01\x7f😀'|tojson ; 'é😀\x7f'|tojson(ensure_ascii=true) ; mix|tojson ; {'b': 1, 'a': 2}|tojson(sort_keys=true) ; [1,2]|tojson(separators=(',', ':')) ; {'a': [1, {}]}|tojson(indent=4) ; {1: 2, none: 3, true: 4, 1.5: 5}|tojson ; (1,2)|tojson ; undefinedvar|tojson ; 1.0|tojson ; 1e400|tojson ; none|tojson ; range(3)|tojson ; {'a': 1}|tojson(indent='--') ; []|tojson(indent=2) ; {'a': {'b': []}}|tojson(indent=0) ; [1, 2]|tojson(indent=1, separators=(', ', ' : '))
mix|dictsort ; {'b': 1, 'A': 2}|dictsort ; {'b': 1, 'A': 2}|dictsort(true) ; {'b': 1, 'A': 2}|dictsort(by='value') ; {'b': 1, 'A': 2}|dictsort(reverse=true) ; {'b': 1}|dictsort(by='x') ; items|batch(2)|list ; items|batch(2, 'x')|list ; [1,2,3,4,5]|slice(3)|list ; [1,2,3,4]|slice(3, 'f')|list ; items|slice(0)|list ; users|groupby('age')|list|length ; users|groupby('addr.city')|map(attribute='grouper')|list ; users|groupby('zip', default='none')|map('first')|list
'a\nb\n\nc'|indent ; 'a\nb'|indent(2) ; 'a\nb'|indent(2, true) ; 'a\n\nb'|indent(2, false, true) ; 'a\nb'|indent('> ') ; 'a\nb'|indent(width=1, first=true) ; ''|indent(2, true) ; 'a\r\nb\n'|indent ; 'foo bar baz qux'|truncate(9) ; 'foo bar baz qux'|truncate(9, true) ; 'foo bar baz qux'|truncate(11) ; 'foo bar baz qux'|truncate(11, false, '...', 0) ; 'foobarbazqux quux'|truncate(9, false, '~') ; 'a b'|truncate(2) ; 'x'|center(5) ~ '|' ; '%s-%s'|format('a', 1) ; '%(x)s'|format(x=2) ; '%s'|format(1, x=2) ; 'a b-c d_e f'|wordcount ; 'a b/c?d=é&x'|urlencode ; {'a b': 1, 'c': '/'}|urlencode ; 1234567|filesizeformat ; 1|filesizeformat ; 2048|filesizeformat(true)
users|map(attribute='name')|list ; users|map(attribute='addr.city')|join(',') ; users|map(attribute='zip', default='-')|list ; ['a','b']|map('upper')|list ; ['a']|map('nofilter')|list ; [1.5, 2.5]|map('round', 0, 'floor')|list ; ['1','2']|map('int')|sum ; users|selectattr('age', '==', 30)|map(attribute='name')|list ; users|selectattr('age')|list|length ; users|rejectattr('age', 'gt', 26)|map(attribute='name')|list ; users|selectattr('zip', 'defined')|list ; items|select('odd')|list ; items|reject('odd')|list ; items|select|list ; items|select('in', [1,2])|list ; items|select('notest')|list ; ['a', 1]|select('string')|list ; messages|selectattr('role', 'equalto', 'user')|list|length ; messages|map(attribute='role')|unique|join('/') ; items|map|list ; 'abc'|attr('upper') is callable ; mix|attr('k')
1|d(2) ; ''|d('x') ; ''|d('x', true) ; none|d('x') ; none|d('x', boolean=true) ; undefinedvar|d ; undefinedvar|default(default_value=3) ; mix.q|default('q')
1 is odd ; 2 is even ; 9 is divisibleby 3 ; 9 is divisibleby(2) ; 1 is integer ; true is integer ; 1.0 is float ; true is number ; 'a' is string ; none is none ; none is defined ; mix is mapping ; items is sequence ; 'a' is sequence ; mix.items() is sequence ; mix is sequence ; 5 is iterable ; 'a' is iterable ; items is iterable ; range is callable ; true is true ; 1 is true ; false is false ; flag is boolean ; 1 is boolean ; 'a' is lower ; 'A' is upper ; 1 is eq 1 ; 1 is ne 2 ; 1 is lt 2 ; 1 is gt(2) ; 2 is ge 2 ; 1 is in [1] ; 1 is not in [1] ; 'upper' is filter ; 'odd' is test ; none is sameas none ; 1 is sameas true ; undefinedvar is not defined ; 'a' is odd ; (1, 2) is sequence ; 1 is none
namespace(a=1).a ; namespace({'b': 2}).b ; namespace().x is defined ; dict(a=1, b=2) ; dict({'a': 1}, b=2) ; dict([('a', 1)]) ; dict(1) ; strftime_now('%Y-%m-%d') ; strftime_now('%d %b %Y') ; strftime_now('%A, %B %-d, %I:%M:%S %p %j %y %H %a %%') ; raise_exception('boom') ; raise_exception()
'a' 'b' "c" ; 'a\x41\u00e9\U0001F600\101\q' ; 'line\
joined' ; 'tab\there' ; "\"q\"" ; '\\n' ; {'a': 1}.a ; [1, 2].1 ; [[1, 2]].0.1 ; (1 ,) ; [1, 2,] ; {'a': 1,} ; -1|abs ; -(1)|abs ; not true == false ; 1 + 1 ~ 2 ; 2 * 3 ~ 4 ; 1 ~ 2 + 3 ; 1 == 1 is true ; not 1 in [2] ; 1 if 0 else 2 if 0 else 3 ; 10 - 2 - 3 ; 2 ** 2 | string ; 'a' if 'b' in 'abc' and not false ; (1, 2) in [(1, 2)] ; 1 < 2 == true ; none == false ; 'x' == none ; '%s' % 'a' ~ 'b' ; 5 % 3 * 2 ; s|length > 5 ; s|upper|lower|title ; -items[0] ; items|length - 1 ; '1' * 2 + '3'
"""

TEMPLATES = [
    "{% for i in items %}{{ loop.index }}/{{ loop.length }}:{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for i in items %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for i in items %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}",
    "{% for i in [1,1,2,2] %}{{ loop.changed(i) }}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}{% for i in [1] %}y{% else %}empty{% endfor %}",
    "{% for i in items if i > 1 %}{{ loop.index }}{{ loop.length }}{{ i }}{% endfor %}",
    "{% for i in [1,2,3,4,5] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for k, v in mix.items() %}{{ k }}={{ v }};{% endfor %}{% for k in mix %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for c in 'héy' %}{{ c }}.{% endfor %}{% for i in 5 %}{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop.depth }}{{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for x in [1] %}{{ loop([2]) }}{% endfor %}",
    "{% set ns = namespace(n=0, found=false) %}{% for i in items %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns }}",
    "{% set ns = namespace(stop=false) %}{% for i in [1,2,3] if not ns.stop %}{{ i }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set x = 0 %}{% for i in items %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% if true %}{% set y = 1 %}{% endif %}{{ y }}{% with a = 1, b = 2 %}{{ a + b }}{% set y = 5 %}{% endwith %}{{ y }}{{ a }}",
    "{% with a = 1, b = a %}{{ b }}{% endwith %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}{% set e = 1, 2 %}{{ e }}",
    "{% set x %}  block {{ 1 + 1 }}\n{% endset %}[{{ x }}]{% set y | trim | upper %} abc {% endset %}[{{ y }}]",
    "{% filter upper | trim %}  some {{ s }} {% endfilter %}|{% filter replace('a', 'b') %}aaa{% endfilter %}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 5) }}|{{ m(b=1, a=0) }}|{{ m() }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, z=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body {{ s }}{% endcall %}",
    "{% macro m(x) %}[{{ caller(x, 2) }}]{% endmacro %}{% call(a, b=7) m(1) %}{{ a }}-{{ b }}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}{{ f }}{{ f.name }}",
    "{% macro m() %}{{ late }}{% endmacro %}{% set late = 3 %}{{ m() }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro m(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{% set x = 10 %}{{ m(1) }}{{ x }}{{ m(*[5]) }}{{ m(**{'x': 6}) }}",
    "a {% raw %}{{ x }} {% if %}{% endraw %} b{# comment #} c",
    "{%- raw -%}  {{ a }}  {%- endraw -%}  z",
    "  {% if true %}\n  yes\n  {% endif %}\n end\n",
    "x\n  {%- if true -%}\n  yes\n  {%- endif -%}\n end\n\n",
    "x\n  {%+ if true +%}\n  yes\n  {%+ endif +%}\n end\n",
    "a  {{- ' b ' -}}  c\n{{ 'd' }}\n  {{ 'e' }}\n",
    "a\n  {# c #}\n  {#- d -#}  \n b {#+ e +#}\n c",
    "  {% set x = 1 %}  {{ x }}  {% set y = 2 %}\n  z",
    "{% if 0 %}a{% elif 1 %}b{% elif 2 %}c{% else %}d{% endif %}{% if none %}{% else %}e{% endif %}",
    "\r\na\rb\r\n{% if true %}\r\nc{% endif %}\r\n",
    "{% generation %}gen {{ s }}{% endgeneration %}{% for m in messages %}{% generation %}{{ m.role }}{% set q = 1 %}{% endgeneration %}{{ q }},{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}x{{ j() }}y{{ c.reset() }}{{ c.next() }}",
    "{% print 1, 2 %}{% print s %}",
    "{{ 'a' if x is defined else 'b' }}{{ foo | nofilter if false }}ok",
    "{% if false %}{{ x | nofilter }}{% endif %}ok",
    "{% if true %}{{ x | nofilter }}{% endif %}ok",
    "{{ x | nofilter }}", "{{ x is notest }}", "{% unknown %}", "{{ 1 +}}", "{% if %}{% endif %}", "{% if 1 %}", "{{ ( }}", "{% endif %}",
    "{% for x in %}{% endfor %}", "{{ 'abc }}", "{{ a b }}", "{% break %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{{- if .System }}x{{ end }}",
    "{% include 'x' %}", "{% macro m(a=1, b) %}{% endmacro %}", "{# open", "{% raw %}x", "{{ 1 }", "{% for a in items %}{% macro q() %}{% break %}{% endmacro %}{% endfor %}",
    "{{ f(a=1, 2) }}", "{{ {1: } }}", "{{ [1, 2 }}", "{{ 'a' ! 'b' }}", "{{ 1 is is odd }}", "{{ a.1b }}", "{{ a..b }}", "{{ }}",
    "{% set ns = {} %}{% set ns.x = 1 %}", "{% set ns = namespace() %}{% set ns.x %}blk{% endset %}{{ ns.x }}",
    "{% for m in messages %}{% if m.content is string %}{{ m.role }}: {{ m.content | trim }}\n{% else %}{% for p in m.content %}{{ p.type }}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ m['content'] + '' }}{% endfor %}",
    "{% set l = items | map('string') %}{{ l | join }}{{ l | join }}",
    "{% set g = items | select('gt', 1) %}{{ g | first }}{{ g | list }}{{ g | list }}",
    "{% for city, people in users | groupby('addr.city') %}{{ city }}: {{ people | map(attribute='name') | join(', ') }}; {% endfor %}",
    "{% for g in users | groupby('age') %}{{ g.grouper }}={{ g.list | length }} {% endfor %}",
    "{% for row in items | batch(2, 0) %}{{ row }}{% endfor %}{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}",
    "{% for i in items %}{% set outer = loop %}{% for j in [1, 2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for i in items %}{% if loop.index == 2 %}{% filter upper %}x{% break %}{% endfilter %}{% endif %}{{ i }}{% endfor %}",
    "{% set x = [] %}{% set x = x + [1] %}{% set x = x + [2] %}{{ x }}{{ (x + [3])[-1] }}",
    "{% set d = {'a': {'b': [10, 20]}} %}{{ d.a.b[1] }}{{ d['a']['b'][-1] }}{{ d.a.c is defined }}{{ d.x.y is defined }}",
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ rest | length }}",
    "{{ messages[::-1] | map(attribute='role') | join(' ') }}{{ messages[-1].role }}",
    "{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{{ nothing }}{{ flag }}{{ true and nothing }}",
    "{%- for i in [1, 2] -%}\n  {{ i }}\n{%- endfor -%}\n",
    "{% if a is defined and a %}1{% elif not a %}2{% endif %}{{ a.b if a else 'n' }}",
    "{% for m in messages if m.role == 'user' %}{{ loop.last }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% call(x) [1]|map %}{% endcall %}", "{{ range(3) | map('string') | list | tojson }}", "{{ dict(messages[2], role='x') | tojson }}",
    "{{ 'x' * 1000 | length }}", "{{ loop }}", "{% for i in [1,2] %}{{ loop }}{% endfor %}",
]


def render(env, template):
    try:
        return {"text": env.from_string(template).render(**VARIABLES)}
    except RecursionError:
        return {"error": "recursion"}
    except Exception as error:  # noqa: BLE001: only failing matters
        return {"error": f"{type(error).__name__}: {str(error)[:80]}"}


def main():
    env = environment()
    expressions = [e.strip(" ") for line in EXPRESSIONS.strip("\n").replace("\\\n", "\0").split("\n") for e in line.split(" ; ")]
    expressions = [e.replace("\0", "\\\n") for e in expressions]
    cases = [{"template": "{{ " + e + " }}"} for e in expressions] + [{"template": t} for t in TEMPLATES]
    for case in cases:
        case.update(render(env, case["template"]))
    out = pathlib.Path(__file__).parent / "chat" / "snippets.json"
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
    variables = json.dumps(VARIABLES, ensure_ascii=False)
    out.write_text(f'{{"now": 1741338303,\n"variables": {variables},\n"cases": [\n{lines}\n]}}\n')
    print(len(cases), "cases,", out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
