// A program of a pool that prints, fails, and gives each verdict.
package main

import (
	"fmt"
	"os"
	"os/exec"

	"rowmq"
)

func handle(message *rowmq.Message) error {
	body := string(message.Body)
	fmt.Println("handling", body)
	// These have neither the frames to read nor the answers to write to.
	child := exec.Command("sh", "-c", "cat; echo by a child")
	child.Stdin, child.Stdout = os.Stdin, os.Stdout
	if err := child.Run(); err != nil {
		return err
	}
	switch body {
	case "discard":
		return rowmq.Discard("old")
	case "dead":
		return fmt.Errorf("as it was sent: %w", rowmq.DeadLetter("broken"))
	case "error":
		panic("TypeError: odd")
	}
	log, err := os.OpenFile(os.Getenv("LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = fmt.Fprintf(log, "%s %d %s\n", message.ID, os.Getpid(), message.Key)
	return err
}

func main() {
	if err := rowmq.Serve(handle, 20); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
