// Package rowmq sends to transactional queues inside MySQL and MariaDB, and handles their messages in a
// pool of rowmq-consumer.
package rowmq

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// Options of a message; what is zero is left to the topic. They are those of queue_send and
// queue_send_unique in the SQL contract.
type Options struct {
	Priority  int
	Key       string
	BizID     string
	Headers   map[string]string
	ID        string
	DeliverIn time.Duration
	DeliverAt time.Time
	ExpiresIn time.Duration
	ExpiresAt time.Time
	// Unique makes it the only message with this key in its topic.
	Unique     string
	UniqueFor  time.Duration
	OnConflict string
	MaxWait    time.Duration
}

// Sent says what became of a message.
type Sent struct {
	// ID is the message's, or that of the message that holds its key; empty if the latter is another
	// account's.
	ID        string
	Duplicate bool
	Replaced  bool
}

// A Transaction is a *sql.Tx, or a *sql.Conn with a transaction of its own.
type Transaction interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Send stores a message in an open transaction: it exists if that commits. Bytes are sent as they are, a
// string as UTF-8, anything else as JSON. A refusal is a *Refused.
func Send(ctx context.Context, tx Transaction, topic string, body any, options Options) (Sent, error) {
	bytes, err := bytesOf(body)
	if err != nil {
		return Sent{}, err
	}
	procedure := "queue_send"
	if options.Unique != "" || options.UniqueFor != 0 || options.OnConflict != "" || options.MaxWait != 0 {
		procedure = "queue_send_unique"
	}
	var given any
	if fields := options.fields(); len(fields) > 0 {
		if given, err = text(fields); err != nil {
			return Sent{}, err
		}
	}
	if _, err = tx.ExecContext(ctx, "CALL "+procedure+"(?, ?, ?)", topic, bytes, given); err != nil {
		return Sent{}, named(err)
	}
	var id sql.NullString
	var sent Sent
	row := tx.QueryRowContext(ctx, "SELECT @queue_msg_id, @queue_duplicate, @queue_replaced")
	err = row.Scan(&id, &sent.Duplicate, &sent.Replaced)
	sent.ID = id.String
	return sent, err
}

// A NewMessage is one of many.
type NewMessage struct {
	Body    any
	Options Options
}

// most is the most messages of one call of queue_send_all.
const most = 1000

// SendAll stores many messages, 1000 in a call, in an open transaction, and returns how many were stored.
// After any error roll back: a call before it may have stored its messages.
func SendAll(ctx context.Context, tx Transaction, topic string, messages []NewMessage) (int, error) {
	stored := 0
	for len(messages) > 0 {
		n := min(len(messages), most)
		batch := make([]map[string]any, 0, n)
		for _, message := range messages[:n] {
			bytes, err := bytesOf(message.Body)
			if err != nil {
				return stored, err
			}
			fields := message.Options.fields()
			if utf8.Valid(bytes) {
				fields["body"] = string(bytes)
			} else {
				fields["body_base64"] = base64.StdEncoding.EncodeToString(bytes)
			}
			batch = append(batch, fields)
		}
		messages = messages[n:]
		given, err := text(batch)
		if err != nil {
			return stored, err
		}
		if _, err := tx.ExecContext(ctx, "CALL queue_send_all(?, ?)", topic, given); err != nil {
			return stored, named(err)
		}
		var sent int
		if err := tx.QueryRowContext(ctx, "SELECT @queue_sent").Scan(&sent); err != nil {
			return stored, err
		}
		stored += sent
	}
	return stored, nil
}

func (o Options) fields() map[string]any {
	fields := map[string]any{}
	set := func(name string, isSet bool, value any) {
		if isSet {
			fields[name] = value
		}
	}
	seconds := func(name string, d time.Duration) { set(name, d != 0, d.Seconds()) }
	moment := func(name string, at time.Time) {
		set(name, !at.IsZero(), at.UTC().Format("2006-01-02T15:04:05.000000Z"))
	}
	set("priority", o.Priority != 0, o.Priority)
	set("key", o.Key != "", o.Key)
	set("biz_id", o.BizID != "", o.BizID)
	set("headers", len(o.Headers) > 0, o.Headers)
	set("id", o.ID != "", o.ID)
	seconds("deliver_in", o.DeliverIn)
	moment("deliver_at", o.DeliverAt)
	seconds("expires_in", o.ExpiresIn)
	moment("expires_at", o.ExpiresAt)
	set("unique", o.Unique != "", o.Unique)
	seconds("unique_for", o.UniqueFor)
	set("on_conflict", o.OnConflict != "", o.OnConflict)
	seconds("max_wait", o.MaxWait)
	return fields
}

func bytesOf(body any) ([]byte, error) {
	switch body := body.(type) {
	case []byte:
		return body, nil
	case string:
		return []byte(body), nil
	}
	bytes, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("the body is no JSON: %w", err)
	}
	return bytes, nil
}

// text returns a value as JSON; a driver sends bytes as BINARY, which no procedure reads as JSON.
func text(value any) (string, error) {
	bytes, err := json.Marshal(value)
	return string(bytes), err
}
