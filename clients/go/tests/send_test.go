// Runs the package on the server of ROWMQ_URL, in whose database each test's topic is.
package tests

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"rowmq"
)

var ctx = context.Background()

func connected(t *testing.T) *sql.DB {
	t.Helper()
	from, err := url.Parse(os.Getenv("ROWMQ_URL"))
	if err != nil {
		t.Fatal(err)
	}
	config := mysql.NewConfig()
	config.Net, config.Addr, config.DBName = "tcp", from.Host, from.Path[1:]
	config.User = from.User.Username()
	config.Passwd, _ = from.User.Password()
	db, err := sql.Open("mysql", config.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func begun(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bodies returns those of the ready messages of a topic, and how many of it are scheduled.
func bodies(t *testing.T, db *sql.DB, topic string) (ready [][]byte, scheduled int) {
	t.Helper()
	rows, err := db.QueryContext(ctx, `SELECT m.body FROM queue_message m
		JOIN queue_topic t ON t.id = m.topic_id WHERE t.name = ? ORDER BY m.id`, topic)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var body []byte
		must(t, rows.Scan(&body))
		ready = append(ready, body)
	}
	must(t, rows.Err())
	must(t, db.QueryRowContext(ctx, `SELECT COUNT(*) FROM queue_scheduled s
		JOIN queue_topic t ON t.id = s.topic_id WHERE t.name = ?`, topic).Scan(&scheduled))
	return ready, scheduled
}

func TestAMessageExistsIfItsTransactionCommits(t *testing.T) {
	db := connected(t)
	options := rowmq.Options{
		Priority:  3,
		Key:       "ada",
		Headers:   map[string]string{"trace": "4bf9"},
		DeliverIn: 48 * time.Hour,
		ExpiresAt: time.Now().Add(30 * 24 * time.Hour),
	}
	for committed, end := range []func(*sql.Tx) error{(*sql.Tx).Rollback, (*sql.Tx).Commit} {
		tx := begun(t, db)
		sent, err := rowmq.Send(ctx, tx, "sending", map[string]int{"order": 17}, options)
		must(t, err)
		if len(sent.ID) != 36 || sent.Duplicate {
			t.Fatalf("%+v", sent)
		}
		must(t, end(tx))
		if _, scheduled := bodies(t, db, "sending"); scheduled != committed {
			t.Fatalf("%d, not %d", scheduled, committed)
		}
	}
}

func TestARefusalHasACodeAndLeavesTheTransactionOpen(t *testing.T) {
	db := connected(t)
	tx := begun(t, db)
	_, err := rowmq.Send(ctx, tx, "refusals", "first", rowmq.Options{})
	must(t, err)
	_, err = rowmq.Send(ctx, tx, "no-such-topic", "x", rowmq.Options{})
	if !errors.Is(err, rowmq.ErrTopicNotFound) || errors.Is(err, rowmq.ErrTopicFull) {
		t.Fatal(err)
	}
	_, err = rowmq.Send(ctx, tx, "refusals", "x", rowmq.Options{Priority: 10})
	var refused *rowmq.Refused
	if !errors.As(err, &refused) {
		t.Fatal(err)
	}
	must(t, tx.Commit())
	if ready, _ := bodies(t, db, "refusals"); len(ready) != 1 || string(ready[0]) != "first" {
		t.Fatalf("%q", ready)
	}
	conn, err := db.Conn(ctx)
	must(t, err)
	defer conn.Close()
	_, err = rowmq.SendAll(ctx, conn, "refusals", []rowmq.NewMessage{{Body: "x"}})
	if !errors.Is(err, rowmq.ErrNoTransaction) {
		t.Fatal(err)
	}
}

func TestOneMessageHoldsAKey(t *testing.T) {
	tx := begun(t, connected(t))
	options := rowmq.Options{Unique: "c-7", OnConflict: "replace", DeliverIn: time.Minute}
	first, err := rowmq.Send(ctx, tx, "unique", "1", options)
	must(t, err)
	second, err := rowmq.Send(ctx, tx, "unique", "2", options)
	must(t, err)
	must(t, tx.Commit())
	if first.Duplicate || first.Replaced || second != (rowmq.Sent{ID: first.ID, Duplicate: true, Replaced: true}) {
		t.Fatalf("%+v, %+v", first, second)
	}
}

func TestManyMessagesAreSentInOneTransaction(t *testing.T) {
	db := connected(t)
	every := make([]byte, 256)
	for n := range every {
		every[n] = byte(n)
	}
	messages := make([]rowmq.NewMessage, 2_500)
	for n := range messages {
		messages[n].Body = n
	}
	messages = append(messages, rowmq.NewMessage{Body: every, Options: rowmq.Options{Key: "k"}})
	tx := begun(t, db)
	stored, err := rowmq.SendAll(ctx, tx, "many", messages)
	must(t, err)
	_, err = rowmq.Send(ctx, tx, "many", every, rowmq.Options{})
	must(t, err)
	must(t, tx.Commit())
	ready, _ := bodies(t, db, "many")
	if stored != 2_501 || len(ready) != 2_502 {
		t.Fatal(stored, len(ready))
	}
	if string(ready[2_499]) != "2499" || !bytes.Equal(ready[2_500], every) || !bytes.Equal(ready[2_501], every) {
		t.Fatalf("%q", ready[2_499:])
	}
}
