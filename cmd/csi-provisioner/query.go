package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// The forms of the output of a command that answers a question.
const (
	outputTable = "table"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// queryOptions are the flags of a command that reads, prints an answer and ends: all of the sidecar's, so that its
// arguments can be pasted, and the command's own.
type queryOptions struct {
	*Options
	command string
	words   []string // beside the flags, without the command
	output  string
	context string
	as      string
	wait    time.Duration
	// own are the flags that the sidecar does not have.
	own *pflag.FlagSet
}

func newQueryOptions(command string) queryOptions {
	own := pflag.NewFlagSet(command, pflag.ContinueOnError)
	own.SortFlags = false
	options := NewOptions()
	options.kubeconfigFirst = true
	return queryOptions{Options: options, command: command, own: own}
}

// addShared adds the flags that all such commands have.
func (o *queryOptions) addShared() {
	o.own.StringVarP(&o.output, "output", "o", outputTable, "How to print: table (for people), json or yaml.")
	o.own.StringVar(&o.context, "context", "", "`Name` of the kubeconfig's context. Empty means its current one.")
	o.own.StringVar(&o.as, "as", "", "`User` to impersonate, as in kubectl.")
}

// allGroups returns the command's own flags and the sidecar's.
func (o *queryOptions) allGroups() []flagGroup {
	return append([]flagGroup{{title: o.command, flags: o.own}}, o.groups()...)
}

// Parse reads the command line, without the program's name.
func (o *queryOptions) Parse(args []string) error {
	w, err := o.parse(args, o.allGroups())
	if err != nil {
		return err
	}
	o.words = w.rest(o.command)
	// What these do is no part of an answer, and they need an environment that only the sidecar's pod has.
	o.capacity, o.nodeCleanup = false, false
	return nil
}

// Validate returns every complaint about the flags that all such commands have, in one joined error, or nil.
func (o *queryOptions) Validate(env environment) error {
	var c complaints
	if forms := []string{outputTable, outputJSON, outputYAML}; !slices.Contains(forms, o.output) {
		c.addf("--output must be one of %s, is %q", strings.Join(forms, ", "), o.output)
	}
	c.positive("wait", o.wait)
	return errors.Join(errors.Join(c...), o.Options.Validate(env))
}

// Complete is that of Options. Outside of a cluster ~/.kube/config is used when nothing names another.
func (o *queryOptions) Complete(env environment, version string) (Config, error) {
	cfg, err := o.Options.Complete(env, version)
	if err != nil {
		return Config{}, err
	}
	k := &cfg.Kube
	k.Context, k.As = o.context, o.as
	if len(k.Kubeconfigs) == 0 && k.Master == "" && !env.inCluster && env.home != "" {
		k.Kubeconfigs = []string{filepath.Join(env.home, ".kube", "config")}
	}
	return cfg, nil
}

// startLog starts a log on stderr when -v or --vmodule asks for one. The answer is on stdout.
func (o *queryOptions) startLog() (klog.Logger, error) {
	if o.logging.Verbosity == 0 && len(o.logging.VModule) == 0 {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
		return klog.Background(), nil
	}
	if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
		return klog.Background(), fmt.Errorf("logging configuration: %w", err)
	}
	return klog.Background(), nil
}

// answer is what such a command prints.
type answer interface {
	writeText(w io.Writer) error
	// data returns what is printed as JSON or YAML.
	data() (any, error)
}

// print prints an answer in the form that --output names.
func (o *queryOptions) print(w io.Writer, a answer) error {
	if o.output == outputTable {
		return a.writeText(w)
	}
	data, err := a.data()
	if err != nil {
		return err
	}
	// MarshalIndent squeezes the request of explain, whose spacing protojson leaves to chance.
	text, err := json.MarshalIndent(data, "", "  ")
	if err == nil && o.output == outputYAML {
		text, err = yaml.JSONToYAML(text)
	}
	if err == nil {
		_, err = w.Write(append(bytes.TrimSuffix(text, []byte("\n")), '\n'))
	}
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// query is a command that reads, prints an answer and ends.
type query interface {
	// shared returns the flags that all of them have.
	shared() *queryOptions
	Parse(args []string) error
	Validate(env environment) error
	// answer prints the answer.
	answer(ctx context.Context, env environment, w io.Writer) error
	writeHelp(w io.Writer) error
}

func (o *queryOptions) shared() *queryOptions { return o }

// query is main for such a command. The exit code is 0 when there is an answer, whatever it is, 2 for a wrong command
// line, and 1 when something that counts cannot be read.
func (p *program) query(q query, args []string) int {
	o, env := q.shared(), readEnvironment(p.getenv, p.accountDir)
	err := q.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return p.printHelp(q.writeHelp)
	case err == nil && o.version:
		return p.printVersion()
	case err == nil:
		err = q.Validate(env)
	}
	if err != nil {
		p.complain(o.command, err)
		fmt.Fprintf(p.stderr, "See %s %s --help.\n", p.args[0], o.command)
		return exitUsage
	}
	defer logs.FlushLogs()
	logger, err := o.startLog()
	if err == nil {
		for _, warning := range o.Warnings(env) {
			p.complain(o.command, errors.New("warning: "+warning))
		}
		err = q.answer(klog.NewContext(context.Background(), logger), env, p.stdout)
	}
	if err != nil {
		p.complain(o.command, err)
		return exitError
	}
	return exitOK
}

// complain prints an error of a command, each line with the command's name.
func (p *program) complain(command string, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(p.stderr, "%s %s: %s\n", p.args[0], command, line)
	}
}
