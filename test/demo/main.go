package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	var d demo
	flag.BoolVar(&d.keep, "keep", false, "leave all running with the claim bound, until Ctrl-C")
	flag.StringVar(&d.binDir, "bin", "bin", "folder with csi-provisioner and memdriver")
	flag.Parse()
	d.out, d.begin = os.Stdout, time.Now()

	ctx, release := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-ctx.Done()
		release() // A second Ctrl-C ends the demo at once; the kernel ends its children then.
	}()
	err := d.run(ctx)
	interrupted := ctx.Err() != nil
	release()
	switch {
	case err == nil:
	case interrupted && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "Interrupted; all that was started has been stopped.")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
