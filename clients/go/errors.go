package rowmq

import (
	"errors"
	"reflect"
)

// A Refused is a call that the queue refuses: nothing has been changed, and your transaction is still
// open. The SQL contract lists the codes with what to do.
type Refused struct {
	Code int
	Text string
	err  error
}

func (r *Refused) Error() string { return r.Text }

// Unwrap returns the driver's error.
func (r *Refused) Unwrap() error { return r.err }

// Refusals that a sender may want to tell apart, by errors.Is.
var (
	ErrTopicNotFound error = &Refused{Code: 31001, Text: "there is no such topic"}
	ErrTopicClosed   error = &Refused{Code: 31002, Text: "the topic accepts no messages now"}
	ErrBodyTooLarge  error = &Refused{Code: 31004, Text: "the body is larger than the topic accepts"}
	ErrNoTransaction error = &Refused{Code: 31013, Text: "the call needs an open transaction"}
	ErrTopicFull     error = &Refused{Code: 31020, Text: "the topic holds as many messages as it may"}
	ErrAccessDenied  error = &Refused{Code: 31028, Text: "the account may not do this in the topic"}
)

// Is reports whether the other error is a refusal with the same code.
func (r *Refused) Is(target error) bool {
	other, ok := target.(*Refused)
	return ok && other.Code == r.Code
}

// named returns the queue's own refusal, and any other error as it is. Drivers of MySQL have an error
// with a Number and a Message; this package depends on none of them.
func named(err error) error {
	for one := err; one != nil; one = errors.Unwrap(one) {
		value := reflect.Indirect(reflect.ValueOf(one))
		if value.Kind() != reflect.Struct {
			continue
		}
		number, text := value.FieldByName("Number"), value.FieldByName("Message")
		if number.IsValid() && number.CanUint() && text.IsValid() && text.Kind() == reflect.String {
			if code := int(number.Uint()); code > 31000 && code < 31100 {
				return &Refused{Code: code, Text: text.String(), err: err}
			}
			return err
		}
	}
	return err
}
