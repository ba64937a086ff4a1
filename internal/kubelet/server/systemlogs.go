package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wherry.dev/internal/safepath"
)

// Limits of a node log query (KEP-2258).
const (
	maxQueryLines    = 100000
	maxServiceName   = 256
	maxQueryServices = 4
	queryTimeout     = 30 * time.Second
)

// systemLogs serves the files of the log directory and, if enabled, the logs of services.
func (s *Server) systemLogs() http.Handler {
	files := http.FileServer(logFolder(s.cfg.SystemLogs))
	if !s.cfg.LogQuery {
		return files
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, errs := parseLogQuery(r.URL.Query())
		if len(errs) > 0 {
			http.Error(w, errs.ToAggregate().Error(), http.StatusBadRequest)
			return
		}
		if q == nil {
			files.ServeHTTP(w, r)
			return
		}
		if errs := q.validate(s.cfg.SystemLogs); len(errs) > 0 {
			http.Error(w, errs.ToAggregate().Error(), http.StatusNotAcceptable)
			return
		}
		if len(q.files) == 1 {
			r.URL.Path = strings.ReplaceAll(q.files[0], `\`, "/")
			files.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
		ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
		defer cancel()
		q.copy(ctx, s.cfg.SystemLogs, w)
	})
}

// logFolder serves the log directory. Pods that collect logs may write there, so anything that is
// not a file of that directory, such as a link that leads out of it or a pipe, is not served.
type logFolder string

func (l logFolder) Open(path string) (http.File, error) { return l.open(path) }

func (l logFolder) open(path string) (*os.File, error) {
	dir, err := safepath.Open(string(l))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	f, err := dir.Within(path)
	if errors.Is(err, safepath.ErrNotRegular) {
		err = fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	return f, err
}

// logQuery requests the logs of services, or one file.
type logQuery struct {
	services, files []string
	logQueryOptions
}

type logQueryOptions struct {
	since, until time.Time
	tail, boot   *int
	pattern      string
}

// parseLogQuery parses a query; nil means that there is none.
func parseLogQuery(values url.Values) (*logQuery, field.ErrorList) {
	var q logQuery
	var errs field.ErrorList
	for _, name := range values["query"] {
		switch {
		case strings.ContainsAny(name, `/\`):
			q.files = append(q.files, name)
		case strings.TrimSpace(name) != "":
			q.services = append(q.services, name)
		}
	}
	if values.Has("query") && len(q.files)+len(q.services) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("query"), values["query"], "query cannot be empty"))
	}
	instant := func(name string, to *time.Time) {
		if s := values.Get(name); s != "" {
			t, err := time.Parse(time.RFC3339, s)
			if err != nil {
				errs = append(errs, field.Invalid(field.NewPath(name), s, "invalid time format"))
			}
			*to = t
		}
	}
	number := func(name string, to **int) {
		if s := values.Get(name); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil {
				errs = append(errs, field.Invalid(field.NewPath(name), s, err.Error()))
			}
			*to = &n
		}
	}
	instant("sinceTime", &q.since)
	instant("untilTime", &q.until)
	number("boot", &q.boot)
	number("tailLines", &q.tail)
	q.pattern = values.Get("pattern")
	if len(errs) == 0 && len(q.files)+len(q.services) == 0 && q.logQueryOptions == (logQueryOptions{}) {
		return nil, nil
	}
	return &q, errs
}

// unsafeName matches what must not be part of an argument of journalctl.
var unsafeName = regexp.MustCompile(`[^a-zA-Z\-_.:0-9@]+`)

// validate returns, in upstream's words, errors for what cannot be answered.
func (q *logQuery) validate(root string) field.ErrorList {
	var errs field.ErrorList
	query := field.NewPath("query")
	for _, name := range q.services {
		if len(name) > maxServiceName {
			errs = append(errs, field.Invalid(query, name, fmt.Sprintf("length must be less than %d", maxServiceName)))
		}
		if unsafeName.MatchString(name) || strings.HasPrefix(name, "-") {
			errs = append(errs, field.Invalid(query, name, "input contains unsupported characters"))
		}
	}
	if len(q.services) > maxQueryServices {
		errs = append(errs, field.TooMany(query, len(q.services), maxQueryServices))
	}
	switch {
	case len(q.files)+len(q.services) == 0:
		errs = append(errs, field.Required(query, "cannot be empty with options"))
	case len(q.files) > 0 && len(q.services) > 0:
		errs = append(errs, field.Invalid(query, fmt.Sprintf("%v, %v", q.files, q.services), "cannot specify a file and service"))
	case len(q.files) > 1:
		errs = append(errs, field.Invalid(query, q.files, "cannot specify more than one file"))
	case len(q.files) == 1 && q.logQueryOptions != (logQueryOptions{}):
		errs = append(errs, field.Invalid(query, q.files, "cannot specify file with options"))
	case len(q.files) == 1:
		if f, err := logFolder(root).open(q.files[0]); err != nil {
			errs = append(errs, field.Invalid(query, q.files, err.Error()))
		} else {
			_ = f.Close()
		}
	}
	return append(errs, q.validateOptions()...)
}

func (q *logQuery) validateOptions() field.ErrorList {
	var errs field.ErrorList
	if !q.since.IsZero() && !q.until.IsZero() && q.since.After(q.until) {
		errs = append(errs, field.Invalid(field.NewPath("untilTime"), q.until, "must be after `sinceTime`"))
	}
	if q.boot != nil && *q.boot > 0 {
		errs = append(errs, field.Invalid(field.NewPath("boot"), *q.boot, "must be less than 1"))
	}
	if q.tail != nil {
		if msgs := validation.IsInRange(*q.tail, 0, maxQueryLines); len(msgs) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("tailLines"), *q.tail, msgs[0]))
		}
	}
	if _, err := syntax.Parse(q.pattern, syntax.Perl); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("pattern"), q.pattern, err.Error()))
	}
	return errs
}

// copy writes the logs of services: from the journal for those that the journal knows, from files
// for the others. Errors are part of the text, as with upstream.
func (q *logQuery) copy(ctx context.Context, root string, w io.Writer) {
	units := journalUnits(ctx)
	var inJournal, inFiles []string
	for _, name := range q.services {
		if slices.Contains(units, name+".service") || slices.Contains(units, name) {
			inJournal = append(inJournal, name)
		} else {
			inFiles = append(inFiles, name)
		}
	}
	if len(inFiles) > 0 && q.logQueryOptions != (logQueryOptions{}) {
		fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\ntry without specifying options\n", inFiles)
		return
	}
	for _, name := range inFiles {
		copyServiceFile(ctx, w, root, name)
	}
	if len(inFiles) > 0 {
		return
	}
	cmd := exec.CommandContext(ctx, "journalctl", q.journalArgs(inJournal)...)
	cmd.Stdout, cmd.Stderr = w, w
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		fmt.Fprintf(w, "\nerror: journal output not available\n")
	}
}

// journalUnits returns the units that the journal has entries for; none without a journal.
func journalUnits(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "journalctl", "--field", "_SYSTEMD_UNIT").Output()
	if err != nil {
		return nil
	}
	return strings.Fields(string(out))
}

func (q *logQuery) journalArgs(services []string) []string {
	const date = "2006-01-02 15:04:05"
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if !q.since.IsZero() {
		args = append(args, "--since="+q.since.UTC().Format(date))
	}
	if !q.until.IsZero() {
		args = append(args, "--until="+q.until.UTC().Format(date))
	}
	if q.tail != nil {
		args = append(args, "--pager-end", fmt.Sprintf("--lines=%d", *q.tail))
	}
	for _, name := range services {
		args = append(args, "--unit="+name)
	}
	if q.pattern != "" {
		args = append(args, "--grep="+q.pattern)
	}
	if q.boot != nil {
		args = append(args, "--boot", strconv.Itoa(*q.boot))
	}
	return args
}

// copyServiceFile writes the first of NAME, NAME.log and NAME/NAME.log that exists.
func copyServiceFile(ctx context.Context, w io.Writer, root, name string) {
	for _, path := range []string{name, name + ".log", name + "/" + name + ".log"} {
		err := copyFile(ctx, w, root, path)
		if err == nil {
			return
		}
		if !errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(w, "\nerror getting log for %s: %v\n", name, err)
			return
		}
	}
	fmt.Fprintf(w, "\nlog not found for %s\n", name)
}

func copyFile(ctx context.Context, w io.Writer, root, path string) error {
	f, err := logFolder(root).open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return errors.Join(err, fs.ErrNotExist)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	_, err = io.Copy(w, f)
	return err
}
