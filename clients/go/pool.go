package rowmq

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const version = 1

// longestReason is in bytes: an answer has at most 64 KiB, and the queue keeps far less.
const longestReason = 8000

// A Message is being handled. The id is the same for every delivery, and the delivery number rises with
// each: together they are the token by which another system can refuse what it has seen.
type Message struct {
	Topic       string
	ID          string
	DeliveryNo  uint32
	Failures    uint32
	EnqueuedAt  time.Time
	Body        []byte
	Key         []byte
	BizID       []byte
	Headers     map[string]string
	TraceParent string
}

// JSON reads the body.
func (m *Message) JSON(into any) error { return json.Unmarshal(m.Body, into) }

// frame is a message as rowmq-consumer pool passes it.
type frame struct {
	Frame       uint64            `json:"frame"`
	Topic       string            `json:"topic"`
	ID          string            `json:"msg_id"`
	DeliveryNo  uint32            `json:"delivery_no"`
	Failures    uint32            `json:"failures"`
	EnqueuedAt  time.Time         `json:"enqueued_at"`
	Headers     map[string]string `json:"headers"`
	TraceParent string            `json:"traceparent"`

	Body        *string `json:"body"`
	BodyBase64  []byte  `json:"body_base64"`
	Key         *string `json:"key"`
	KeyBase64   []byte  `json:"key_base64"`
	BizID       *string `json:"biz_id"`
	BizIDBase64 []byte  `json:"biz_id_base64"`
}

// answer is what becomes of it.
type answer struct {
	Frame   uint64   `json:"frame"`
	Verdict string   `json:"verdict"`
	Reason  string   `json:"reason,omitempty"`
	Delay   *float64 `json:"delay,omitempty"`
	Last    bool     `json:"last,omitempty"`
}

// Serve handles one message after another until the consumer ends the pool. After maxMessages (0: no
// end) it returns, and the consumer starts the program again.
//
// The handler returns nil to ack; any other error than a Verdict, and a panic, mean Retry. Run it by
// rowmq-consumer pool TOPIC -- PROGRAM.
func Serve(handle func(*Message) error, maxMessages int) error {
	if os.Getenv("ROWMQ_POOL") != strconv.Itoa(version) {
		return fmt.Errorf("start it by rowmq-consumer pool, of a version that speaks %d", version)
	}
	frames, answers, err := ownStreams()
	if err != nil {
		return fmt.Errorf("the streams of the pool: %w", err)
	}
	if err := say(answers, map[string]int{"rowmq_pool": version}); err != nil {
		return err
	}
	lines := bufio.NewReader(frames)
	for handled := 1; ; handled++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// The consumer has gone, perhaps in the middle of a frame.
			return nil
		} else if err != nil {
			return err
		}
		var given frame
		if err := json.Unmarshal(line, &given); err != nil {
			return fmt.Errorf("a frame is no JSON: %w", err)
		}
		reply := answered(handle, &given)
		reply.Last = handled == maxMessages
		if err := say(answers, reply); err != nil || reply.Last {
			return err
		}
	}
}

// ownStreams keeps the frames and the answers for this program alone: what a handler starts reads nothing
// of them, and what it prints goes to standard error.
func ownStreams() (frames, answers *os.File, err error) {
	own := [2]int{}
	for fd := range own {
		if own[fd], err = syscall.Dup(fd); err != nil {
			return nil, nil, err
		}
		syscall.CloseOnExec(own[fd])
	}
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return nil, nil, err
	}
	defer nothing.Close()
	if err := syscall.Dup3(int(nothing.Fd()), 0, 0); err != nil {
		return nil, nil, err
	}
	if err := syscall.Dup3(2, 1, 0); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(own[0]), "frames"), os.NewFile(uintptr(own[1]), "answers"), nil
}

func answered(handle func(*Message) error, given *frame) answer {
	reply := answer{Frame: given.Frame, Verdict: "ack"}
	err := called(handle, given.message())
	if err == nil {
		return reply
	}
	verdict := verdictOf(err)
	reply.Verdict = verdict.word
	reply.Reason = strings.ToValidUTF8(verdict.reason[:min(len(verdict.reason), longestReason)], "\uFFFD")
	if verdict.delay != nil {
		seconds := verdict.delay.Seconds()
		reply.Delay = &seconds
	}
	return reply
}

func called(handle func(*Message) error, message *Message) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = Retry(fmt.Sprintf("panic: %v", reason))
			fmt.Fprintf(os.Stderr, "panic: %v\n%s", reason, debug.Stack())
		}
	}()
	return handle(message)
}

func (f *frame) message() *Message {
	of := func(text *string, bytes []byte) []byte {
		if text != nil {
			return []byte(*text)
		}
		return bytes
	}
	return &Message{
		Topic:       f.Topic,
		ID:          f.ID,
		DeliveryNo:  f.DeliveryNo,
		Failures:    f.Failures,
		EnqueuedAt:  f.EnqueuedAt,
		Body:        of(f.Body, f.BodyBase64),
		Key:         of(f.Key, f.KeyBase64),
		BizID:       of(f.BizID, f.BizIDBase64),
		Headers:     f.Headers,
		TraceParent: f.TraceParent,
	}
}

func say(answers io.Writer, line any) error {
	bytes, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = answers.Write(append(bytes, '\n'))
	return err
}
