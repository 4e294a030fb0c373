package rowmq

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Verdict is a decision about a message other than ack: a handler returns one as its error. Any other
// error means Retry.
type Verdict struct {
	word   string
	reason string
	delay  *time.Duration
}

func (v *Verdict) Error() string { return strings.TrimSuffix(v.word+": "+v.reason, ": ") }

// Retry says that the message has failed: try again after the topic's backoff.
func Retry(reason string) error { return &Verdict{word: "retry", reason: reason} }

// RetryAfter says that the message has failed: try again after this time.
func RetryAfter(delay time.Duration, reason string) error {
	return &Verdict{word: "retry", reason: reason, delay: atLeastZero(delay)}
}

// Snooze puts a message off: it comes back after this time, and nothing is charged.
func Snooze(delay time.Duration, reason string) error {
	return &Verdict{word: "snooze", reason: reason, delay: atLeastZero(delay)}
}

// DeadLetter says never to try again.
func DeadLetter(reason string) error { return &Verdict{word: "dead-letter", reason: reason} }

// Discard says that the message is not worth handling: it is acked, and the reason is kept.
func Discard(reason string) error { return &Verdict{word: "discard", reason: reason} }

// Release gives a message back unchanged, and nothing is charged.
func Release() error { return &Verdict{word: "release"} }

// longest is the longest delay that the queue takes: ten years.
const longest = 315_360_000 * time.Second

func atLeastZero(delay time.Duration) *time.Duration {
	delay = min(max(delay, 0), longest)
	return &delay
}

// verdictOf returns the verdict that an error of a handler stands for.
func verdictOf(err error) *Verdict {
	var verdict *Verdict
	if errors.As(err, &verdict) {
		return verdict
	}
	return &Verdict{word: "retry", reason: fmt.Sprintf("%T: %v", err, err)}
}
