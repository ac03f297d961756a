package frame_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"

	"holdfast/internal/platform/frame"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var wire bytes.Buffer
		c := frame.NewConn(&wire, &wire)
		kind := frame.Kind(rapid.IntRange(0, int(frame.Event)).Draw(t, "kind"))
		size := rapid.OneOf(rapid.IntRange(0, 9), rapid.SampledFrom([]int{frame.MaxPayload - 1, frame.MaxPayload, frame.MaxPayload + 1, 3*frame.MaxPayload + 7})).Draw(t, "size")
		sent := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, size)
		if err := c.Write(kind, sent); err != nil {
			t.Fatal(err)
		}
		var got []byte
		frames := 0
		for {
			k, p, err := c.Read()
			if err == io.EOF {
				break
			}
			if err != nil || k != kind || len(p) > frame.MaxPayload {
				t.Fatalf("kind %d, %d bytes, %v", k, len(p), err)
			}
			got = append(got, p...)
			frames++
		}
		if want := max(1, (size+frame.MaxPayload-1)/frame.MaxPayload); !bytes.Equal(got, sent) || frames != want {
			t.Fatalf("%d of %d bytes in %d frames, want %d", len(got), size, frames, want)
		}
	})
}

func TestBadFrames(t *testing.T) {
	for name, tt := range map[string]struct {
		wire []byte
		want error // nil: any
	}{
		"nothing":      {nil, io.EOF},
		"half header":  {[]byte{1, 0}, io.ErrUnexpectedEOF},
		"half payload": {[]byte{1, 0, 0, 0, 3, 'a'}, io.ErrUnexpectedEOF},
		"no payload":   {[]byte{1, 0, 0, 0, 3}, io.ErrUnexpectedEOF},
		"unknown kind": {[]byte{8, 0, 0, 0, 0}, nil},
		"too long":     {append([]byte{1, 0, 0, 0x80, 1}, make([]byte, frame.MaxPayload+1)...), nil},
		"4 GiB":        {[]byte{1, 0xff, 0xff, 0xff, 0xff}, nil},
	} {
		_, _, err := frame.NewConn(bytes.NewReader(tt.wire), io.Discard).Read()
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", name, err, tt.want)
		}
	}
}

func TestEmptyWriteIsNoEndOfInput(t *testing.T) {
	var wire bytes.Buffer
	n, err := frame.NewConn(&wire, &wire).Writer(frame.Stdin).Write(nil)
	if n != 0 || err != nil || wire.Len() != 0 {
		t.Errorf("an empty write sent %d bytes (%d, %v)", wire.Len(), n, err)
	}
}

func TestTagged(t *testing.T) {
	var wire bytes.Buffer
	c := frame.NewConn(&wire, &wire)
	sent := bytes.Repeat([]byte("x"), 2*frame.MaxPayload)
	if n, err := c.Tagged(frame.Stderr, 300).Write(sent); n != len(sent) || err != nil {
		t.Fatal(n, err)
	}
	var got []byte
	for wire.Len() > 0 {
		k, p, err := c.Read()
		tag, rest, ok := frame.Untag(p)
		if err != nil || k != frame.Stderr || tag != 300 || !ok {
			t.Fatal(k, tag, ok, err)
		}
		got = append(got, rest...)
	}
	if !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes", len(got), len(sent))
	}
	if _, _, ok := frame.Untag([]byte{1}); ok {
		t.Error("half a tag is one")
	}
}
