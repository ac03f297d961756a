package gateway

import (
	"bytes"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"unicode/utf8"

	"holdfast/internal/sessions/gateway/frame"
)

// The ways to write a case to a connection, beside pieces of a fixed size.
const (
	frameWise = 0
	octetWise = 1
	oneChop   = -1
)

// autobahnCase is one case of Autobahn's WebSocket test suite: what its fuzzing end
// sends. The numbers are those of the suite's reports
// (https://github.com/crossbario/autobahn-testsuite); the data are made here.
type autobahnCase struct {
	name    string
	frames  []wsFrame
	chop    int    // octets of one write, or one of the above
	cuts    []int  // of the payload of the only frame, instead of chop
	pauses  bool   // wait for the answers to each frame before the next
	code    uint16 // of the Close frame that the other end has to send; 0: it has none
	deflate *deflateCase
	direct  [2][]byte // what the fuzzing client, and the fuzzing server, receive without a gateway
}

// deflateCase is what both ends agree on.
type deflateCase struct {
	offer, answer string // Sec-WebSocket-Extensions
	server        func() *deflater
}

// pieces returns the octets of the case in pieces that are written, and whether to wait
// for all answers before each. Each case ends with a Close frame.
func (c *autobahnCase) pieces(mask bool) (all [][]byte, wait []bool) {
	add := func(b []byte, w bool) {
		all, wait = append(all, b), append(wait, w)
	}
	for i, f := range c.frames {
		b := f.encode(mask)
		last := 0
		for _, cut := range c.cuts {
			at := len(b) - len(f.payload) + cut
			add(b[last:at], last > 0)
			last = at
		}
		add(b[last:], c.pauses && i > 0 || last > 0)
	}
	if c.chop == oneChop {
		all, wait = [][]byte{bytes.Join(all, nil)}, []bool{false}
	}
	closes := slices.ContainsFunc(c.frames, func(f wsFrame) bool { return f.first == frame.Fin|frame.Close })
	if c.code == 1000 && !closes {
		add(closeFrame(1000, "").encode(mask), true)
	}
	return all, wait
}

func fin(op byte, payload string) wsFrame { return wsFrame{frame.Fin | op, []byte(payload)} }
func more(op byte, payload string) wsFrame {
	return wsFrame{op, []byte(payload)}
}

// rsv sets the three reserved bits.
func (f wsFrame) rsv(bits byte) wsFrame {
	f.first |= bits << 4
	return f
}

const (
	contOp, textOp, binaryOp = 0, 1, 2

	hello = "Hello, world!"
	kosme = "\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5" // a word of five letters
	bad   = "\xed\xa0\x80"                                 // a surrogate
)

// autobahn makes the table. Large payloads are divided by scale, and compressed messages are sent count times.
type autobahn struct {
	scale, count int
	cases        []*autobahnCase
}

func (a *autobahn) add(name string, code uint16, chop int, frames ...wsFrame) *autobahnCase {
	c := &autobahnCase{name: name, code: code, chop: chop, frames: frames}
	a.cases = append(a.cases, c)
	return c
}

// autobahnCases returns all cases.
func autobahnCases(scale, count int) []*autobahnCase {
	a := &autobahn{scale: scale, count: count}
	a.framing()
	a.pings()
	a.reserved()
	a.fragmentation()
	a.utf8()
	a.closing()
	a.limits()
	a.compression()
	return a.cases
}

func (a *autobahn) framing() {
	for i, kind := range []struct {
		op   byte
		fill string
	}{{textOp, "*"}, {binaryOp, "\xfe"}} {
		for j, n := range []int{0, 125, 126, 127, 128, 65535, 65536, 65536} {
			chop := frameWise
			if j == 7 {
				chop = 997
			}
			a.add(fmt.Sprintf("1.%d.%d", i+1, j+1), 1000, chop, fin(kind.op, strings.Repeat(kind.fill, n)))
		}
	}
}

func (a *autobahn) pings() {
	ping := func(payload string) wsFrame { return fin(frame.Ping, payload) }
	pong := func(payload string) wsFrame { return fin(frame.Pong, payload) }
	most := strings.Repeat("\xfe", 125)
	a.add("2.1", 1000, frameWise, ping(""))
	a.add("2.2", 1000, frameWise, ping(hello))
	a.add("2.3", 1000, frameWise, ping("\x00\xff\xfe\xfd\xfc\xfb\x00\xff"))
	a.add("2.4", 1000, frameWise, ping(most))
	a.add("2.5", 1002, frameWise, ping(most+"\xfe"))
	a.add("2.6", 1000, octetWise, ping(most))
	a.add("2.7", 1000, frameWise, pong(""))
	a.add("2.8", 1000, frameWise, pong("unsolicited"))
	a.add("2.9", 1000, frameWise, pong("unsolicited"), ping("there?"))
	var ten []wsFrame
	for i := range 10 {
		ten = append(ten, ping(fmt.Sprintf("ping %d", i)))
	}
	a.add("2.10", 1000, frameWise, ten...)
	a.add("2.11", 1000, octetWise, ten...)
}

// reserved has the sections 3 and 4.
func (a *autobahn) reserved() {
	text, ping := fin(textOp, hello), fin(frame.Ping, "")
	a.add("3.1", 1002, frameWise, text.rsv(1))
	a.add("3.2", 1002, frameWise, text, text.rsv(2), ping)
	a.add("3.3", 1002, frameWise, text, text.rsv(3), ping)
	a.add("3.4", 1002, octetWise, text, text.rsv(4), ping)
	a.add("3.5", 1002, frameWise, fin(binaryOp, "\x00\xff\xfe").rsv(5))
	a.add("3.6", 1002, frameWise, fin(frame.Ping, hello).rsv(6))
	a.add("3.7", 1002, frameWise, closeFrame(1000, "").rsv(7))
	for i, first := range []byte{3, 11} {
		for j := range byte(5) {
			chop, frames := frameWise, []wsFrame{fin(first+j, "")}
			if j%2 == 1 || j == 4 {
				frames[0].payload = []byte("reserved")
			}
			if j >= 2 {
				frames = []wsFrame{text, frames[0], ping}
			}
			if j == 4 {
				chop = octetWise
			}
			a.add(fmt.Sprintf("4.%d.%d", i+1, j+1), 1002, chop, frames...)
		}
	}
}

func (a *autobahn) fragmentation() {
	begin, end := more(textOp, "fragment1"), fin(contOp, "fragment2")
	ping := fin(frame.Ping, "between")
	a.add("5.1", 1002, frameWise, more(frame.Ping, "fragment1"), end)
	a.add("5.2", 1002, frameWise, more(frame.Pong, "fragment1"), end)
	chops := []int{frameWise, oneChop, octetWise}
	for i, chop := range chops {
		a.add(fmt.Sprintf("5.%d", 3+i), 1000, chop, begin, end)
	}
	for i, chop := range chops {
		a.add(fmt.Sprintf("5.%d", 6+i), 1000, chop, begin, ping, end)
	}
	for i, chop := range chops {
		a.add(fmt.Sprintf("5.%d", 9+i), 1002, chop, fin(contOp, "nothing to continue"), fin(textOp, hello))
	}
	for i, chop := range chops {
		a.add(fmt.Sprintf("5.%d", 12+i), 1002, chop, more(contOp, "nothing to continue"), fin(textOp, hello))
	}
	a.add("5.15", 1002, oneChop, begin, end, more(contOp, "fragment3"), fin(textOp, "fragment4"))
	for i, lone := range []wsFrame{more(contOp, "lone"), fin(contOp, "lone")} {
		a.add(fmt.Sprintf("5.%d", 16+i), 1002, frameWise, lone, begin, end, lone, begin, end)
	}
	a.add("5.18", 1002, frameWise, begin, fin(textOp, "fragment2"))
	long := []wsFrame{begin, more(contOp, "fragment2"), fin(frame.Ping, "one"), more(contOp, "fragment3"), more(contOp, "fragment4"), fin(frame.Ping, "two"), fin(contOp, "fragment5")}
	a.add("5.19", 1000, frameWise, long...).pauses = true
	a.add("5.20", 1000, octetWise, long...).pauses = true
}

// inFragments divides a text.
func inFragments(s string, at ...int) (all []wsFrame) {
	op, last := byte(textOp), 0
	for _, n := range at {
		all = append(all, more(op, s[last:n]))
		op, last = contOp, n
	}
	return append(all, fin(op, s[last:]))
}

func inOctets(s string) []wsFrame {
	var at []int
	for i := 1; i < len(s); i++ {
		at = append(at, i)
	}
	return inFragments(s, at...)
}

func (a *autobahn) utf8() {
	a.add("6.1.1", 1000, frameWise, fin(textOp, ""))
	a.add("6.1.2", 1000, frameWise, inFragments("", 0, 0)...)
	a.add("6.1.3", 1000, frameWise, inFragments("middle", 0, 6)...)
	const word = "Hello-\u00b5@\u00df\u00f6\u00e4\u00fc\u00e0\u00e1-UTF-8!!"
	a.add("6.2.1", 1000, frameWise, fin(textOp, word))
	a.add("6.2.2", 1000, frameWise, inFragments(word, strings.Index(word, "\u00f6"))...)
	a.add("6.2.3", 1000, frameWise, inOctets(word)...)
	a.add("6.2.4", 1000, frameWise, inOctets(kosme)...)
	a.add("6.3.1", 1007, frameWise, fin(textOp, kosme+bad+"edited"))
	a.add("6.3.2", 1007, frameWise, inOctets(kosme+bad+"edited")...)
	const beyond = kosme + "\xf4\x90\x80\x80" + "edited" // over U+10FFFF
	a.add("6.4.1", 1007, frameWise, inFragments(beyond, 11, 15)...).pauses = true
	a.add("6.4.2", 1007, frameWise, inFragments(beyond, 12, 13)...).pauses = true
	a.add("6.4.3", 1007, frameWise, fin(textOp, beyond)).cuts = []int{11, 15}
	a.add("6.4.4", 1007, frameWise, fin(textOp, beyond)).cuts = []int{12, 13}
	for i, section := range utf8Sections() {
		for j, s := range section {
			code := uint16(1000)
			if !utf8.ValidString(s) {
				code = 1007
			}
			a.add(fmt.Sprintf("6.%d.%d", 5+i, j+1), code, frameWise, fin(textOp, s))
		}
	}
}

// utf8Sections returns the texts of the sections from 6.5 on. They follow Markus Kuhn's
// stress test for UTF-8 decoders.
func utf8Sections() [][]string {
	raw := func(n int, v rune) string { return string(lax(n, v)) }
	var prefixes []string
	for i := 1; i <= len(kosme); i++ {
		prefixes = append(prefixes, kosme[:i])
	}
	around := func(s string) string { return "hello" + s + "world" }
	last := func(n int) rune { // the largest value that n octets hold
		if n == 1 {
			return 0x7f
		}
		return 1<<(5*n+1) - 1
	}
	continuation := []string{"\x80", "\xbf"}
	for n := 2; n <= 6; n++ {
		continuation = append(continuation, strings.Repeat("\x80\xbf", 3)[:n])
	}
	continuation = append(continuation, octets(0x80, 0xbf, ""))
	var short []string // without the last octet
	for _, v := range []func(int) rune{func(int) rune { return 0 }, last} {
		for n := 2; n <= 6; n++ {
			short = append(short, raw(n, v(n))[:n-1])
		}
	}
	longer := func(first int, v func(n int) rune) (all []string) {
		for n := first; n <= 6; n++ {
			all = append(all, raw(n, v(n)))
		}
		return all
	}
	surrogate := func(list ...rune) (all []string) {
		for _, v := range list {
			all = append(all, raw(3, v))
		}
		return all
	}
	var pairs []string
	for _, high := range []rune{0xd800, 0xdb7f, 0xdb80, 0xdbff} {
		for _, low := range []rune{0xdc00, 0xdfff} {
			pairs = append(pairs, raw(3, high)+raw(3, low))
		}
	}
	var nonCharacters []string
	for plane := rune(0); plane <= 0x10; plane++ {
		nonCharacters = append(nonCharacters, string(plane<<16|0xfffe), string(plane<<16|0xffff))
	}
	var specials []string
	for v := rune(0xfff9); v <= 0xffff; v++ {
		specials = append(specials, string(v))
	}
	return [][]string{
		{around("$"), around("\u00a2"), around("\u20ac"), around("\U00024b62"), kosme},
		prefixes,
		{"\x00", "\u0080", "\u0800", "\U00010000"},
		{raw(5, 1<<21), raw(6, 1<<26)},
		{"\x7f", "\u07ff", "\uffff", "\U0010ffff"},
		longer(4, last),
		{"\ud7ff", "\ue000", "\ufffd", "\U0010ffff", raw(4, 0x110000)},
		continuation,
		{octets(0xc0, 0xdf, " "), octets(0xe0, 0xef, " "), octets(0xf0, 0xf7, " "), octets(0xf8, 0xfb, " "), octets(0xfc, 0xfd, " ")},
		short,
		{strings.Join(short, "")},
		{"\xfe", "\xff", "\xfe\xfe\xff\xff"},
		longer(2, func(int) rune { return '/' }),
		longer(2, func(n int) rune { return last(n - 1) }),
		longer(2, func(int) rune { return 0 }),
		surrogate(0xd800, 0xdb7f, 0xdb80, 0xdbff, 0xdc00, 0xdf80, 0xdfff),
		pairs,
		nonCharacters,
		specials,
	}
}

// lax encodes v in n octets, whether UTF-8 allows it or not.
func lax(n int, v rune) []byte {
	if n == 1 {
		return []byte{byte(v)}
	}
	b := make([]byte, n)
	for i := n - 1; i > 0; i-- {
		b[i] = 0x80 | byte(v&0x3f)
		v >>= 6
	}
	b[0] = byte(0xff<<(8-n)) | byte(v)
	return b
}

// octets returns a range of octets, each followed by after.
func octets(from, to int, after string) string {
	var s strings.Builder
	for c := from; c <= to; c++ {
		s.WriteByte(byte(c))
		s.WriteString(after)
	}
	return s.String()
}

func (a *autobahn) closing() {
	text := fin(textOp, "Hello World!")
	normal, ping := closeFrame(1000, ""), fin(frame.Ping, "")
	a.add("7.1.1", 1000, frameWise, text, normal)
	a.add("7.1.2", 1000, frameWise, normal, normal)
	a.add("7.1.3", 1000, frameWise, normal, ping)
	a.add("7.1.4", 1000, frameWise, normal, text)
	a.add("7.1.5", 1000, frameWise, more(textOp, "fragment1"), normal, fin(contOp, "fragment2"))
	a.add("7.1.6", 1000, frameWise, fin(textOp, strings.Repeat("BAsd7&jh23", 256<<10/10)), text, normal, ping)
	a.add("7.3.1", 0, frameWise, fin(frame.Close, ""))
	a.add("7.3.2", 1002, frameWise, fin(frame.Close, "a"))
	a.add("7.3.3", 1000, frameWise, normal)
	a.add("7.3.4", 1000, frameWise, closeFrame(1000, "Hello World!"))
	a.add("7.3.5", 1000, frameWise, closeFrame(1000, strings.Repeat("*", 123)))
	a.add("7.3.6", 1002, frameWise, closeFrame(1000, strings.Repeat("*", 124)))
	a.add("7.5.1", 1007, frameWise, closeFrame(1000, kosme+bad+"edited"))
	for i, code := range []uint16{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999} {
		a.add(fmt.Sprintf("7.7.%d", i+1), code, frameWise, closeFrame(code, ""))
	}
	for i, code := range []uint16{0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999} {
		a.add(fmt.Sprintf("7.9.%d", i+1), 1002, frameWise, closeFrame(code, ""))
	}
	a.add("7.13.1", 1002, frameWise, closeFrame(5000, ""))
	a.add("7.13.2", 1002, frameWise, closeFrame(65535, ""))
}

// limits has the sections 9 and 10.
func (a *autobahn) limits() {
	const k, m = 1 << 10, 1 << 20
	kinds := []struct {
		op   byte
		fill string
	}{{textOp, "*"}, {binaryOp, "\xfe"}}
	for i, kind := range kinds {
		payload := func(n int) string { return strings.Repeat(kind.fill, max(1, n/a.scale)) }
		for j, n := range []int{64 * k, 256 * k, m, 4 * m, 8 * m, 16 * m} {
			a.add(fmt.Sprintf("9.%d.%d", i+1, j+1), 1000, frameWise, fin(kind.op, payload(n)))
		}
		for j, n := range []int{64, 256, k, 4 * k, 16 * k, 64 * k, 256 * k, m, 4 * m} {
			all := payload(4 * m)
			var at []int
			for next := n; next < len(all); next += n {
				at = append(at, next)
			}
			frames := inFragments(all, at...)
			frames[0].first = frames[0].first&frame.Fin | kind.op
			a.add(fmt.Sprintf("9.%d.%d", i+3, j+1), 1000, frameWise, frames...)
		}
		for j, n := range []int{64, 128, 256, 512, k, 2 * k} {
			a.add(fmt.Sprintf("9.%d.%d", i+5, j+1), 1000, n, fin(kind.op, payload(m)))
		}
		for j, n := range []int{0, 16, 64, 256, k, 4 * k} {
			one := fin(kind.op, strings.Repeat(kind.fill, n))
			var all []wsFrame
			for range max(1, 1000/a.scale) {
				all = append(all, one)
			}
			a.add(fmt.Sprintf("9.%d.%d", i+7, j+1), 1000, frameWise, all...).pauses = true
		}
	}
	var at []int
	for next := 1300; next < 64*k; next += 1300 {
		at = append(at, next)
	}
	a.add("10.1.1", 1000, frameWise, inFragments(strings.Repeat("*", 64*k), at...)...)
}

// compression has the sections 12 and 13.
func (a *autobahn) compression() {
	const offer = "permessage-deflate"
	bits := func(n string) string { return "; server_max_window_bits=" + n }
	const none = "; server_no_context_takeover"
	agreements := []struct {
		offer, answer   string
		takeover, small bool // of the server
		kind            string
	}{
		{offer, offer, true, false, "text"}, {offer, offer, true, false, "picture"}, {offer, offer, true, false, "packed"},
		{offer, offer, true, false, "json"}, {offer, offer, true, false, "html"},
		{offer, offer, true, false, "json"},
		{offer + none, offer + none, false, false, "json"},
		{offer + bits("9"), offer + bits("9"), true, true, "json"},
		{offer + bits("15"), offer + bits("15"), true, false, "json"},
		{offer + none + bits("9"), offer + none + bits("9"), false, true, "json"},
		{offer + none + bits("15"), offer + none + bits("15"), false, false, "json"},
		{offer + none + bits("9") + ", " + offer + none + ", " + offer, offer + none + bits("9"), false, true, "json"},
	}
	for i, c := range agreements {
		name := fmt.Sprintf("12.%d", i+1)
		if i >= 5 {
			name = fmt.Sprintf("13.%d", i-4)
		}
		agreed := &deflateCase{c.offer, c.answer, func() *deflater { return newDeflater(c.takeover, c.small) }}
		for j, size := range [][2]int{
			{16}, {64}, {256}, {1024}, {4096}, {8192}, {16384}, {32768}, {65536}, {131072},
			{8192, 256}, {16384, 256}, {32768, 256}, {65536, 256}, {131072, 256}, {131072, 1024}, {131072, 4096}, {131072, 32768},
		} {
			op := byte(binaryOp)
			if c.kind == "json" || c.kind == "html" {
				op = textOp
			}
			d := newDeflater(c.takeover, c.small)
			data := rand.New(rand.NewSource(int64(i*100 + j)))
			var frames []wsFrame
			for range a.count {
				b := d.message(madeData(data, c.kind, max(16, size[0]/a.scale)))
				first := op | rsv1
				for _, n := range fragments(len(b), size[1]) {
					frames = append(frames, wsFrame{first, b[:n]})
					b, first = b[n:], contOp
				}
				frames[len(frames)-1].first |= frame.Fin
			}
			added := a.add(fmt.Sprintf("%s.%d", name, j+1), 1000, frameWise, frames...)
			added.deflate = agreed
		}
	}
}

// madeData returns n octets of some kind.
func madeData(r *rand.Rand, kind string, n int) []byte {
	var b bytes.Buffer
	for b.Len() < n {
		switch kind {
		case "text":
			b.WriteString([]string{"hold ", "fast ", "every ", "session ", "delay ", "drop ", "never\n"}[r.Intn(7)])
		case "picture": // rows of near values
			b.Write(bytes.Repeat([]byte{byte(128 + r.Intn(16))}, 1+r.Intn(8)))
		case "packed": // no repetition
			b.WriteByte(byte(r.Intn(256)))
		case "json":
			fmt.Fprintf(&b, `{"id":%d,"name":"session-%d","ready":%v},`, r.Intn(1000), r.Intn(100), r.Intn(2) == 0)
		case "html":
			fmt.Fprintf(&b, "<tr><td>%d</td><td class=\"name\">session %d</td></tr>\n", r.Intn(1000), r.Intn(100))
		}
	}
	return b.Bytes()[:n]
}
