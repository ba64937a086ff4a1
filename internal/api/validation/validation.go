// Package validation finds what is wrong with an object, in the API's own terms: the path of each
// field, the value, and what is allowed. Rules and wording follow upstream's, so that people, tools
// and tests that know one know the other.
//
// Everything here is pure. The registry checks the metadata, and fills in the defaults, beforehand.
package validation

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"
)

// path is short for a parameter of nearly every function.
type path = *field.Path

// problems collects what is wrong.
type problems struct{ list field.ErrorList }

func (p *problems) add(errs ...*field.Error) {
	for _, err := range errs {
		if err != nil {
			p.list = append(p.list, err)
		}
	}
}

func (p *problems) addAll(list field.ErrorList) { p.list = append(p.list, list...) }

func (p *problems) required(at path, detail string) { p.add(field.Required(at, detail)) }

func (p *problems) forbidden(at path, format string, args ...any) {
	p.add(field.Forbidden(at, fmt.Sprintf(format, args...)))
}

func (p *problems) invalid(at path, value any, format string, args ...any) {
	detail := format
	if len(args) > 0 {
		detail = fmt.Sprintf(format, args...)
	}
	p.add(field.Invalid(at, value, detail))
}

// matches adds an error for each message of a check about the value.
func matches[T any](p *problems, at path, value T, messages []string) {
	for _, m := range messages {
		p.add(field.Invalid(at, value, m))
	}
}

// present reports a required string that is empty. It returns whether the string is present.
func (p *problems) present(at path, value string) bool {
	if value == "" {
		p.required(at, "")
	}
	return value != ""
}

func (p *problems) notNegative(at path, value int64) {
	if value < 0 {
		p.add(field.Invalid(at, value, mustNotBeNegative).WithOrigin("minimum"))
	}
}

func (p *problems) positive(at path, value int64) {
	if value <= 0 {
		p.add(field.Invalid(at, value, "must be greater than zero").WithOrigin("minimum"))
	}
}

const mustNotBeNegative = "must be greater than or equal to 0"

func (p *problems) quantityNotNegative(at path, q resource.Quantity) {
	if q.Sign() < 0 {
		p.add(field.Invalid(at, q.String(), mustNotBeNegative).WithOrigin("minimum"))
	}
}

// oneOf reports a value that is not among the allowed ones, and lists these.
func oneOf[T ~string](p *problems, at path, value T, allowed ...T) {
	if slices.Contains(allowed, value) {
		return
	}
	p.add(notSupported(at, value, allowed))
}

// oneOfRequired is like oneOf, for a field that defaulting fills in.
func oneOfRequired[T ~string](p *problems, at path, value T, allowed ...T) {
	if value == "" {
		p.required(at, "")
		return
	}
	oneOf(p, at, value, allowed...)
}

func notSupported[T ~string](at path, value T, allowed []T) *field.Error {
	sorted := slices.Clone(allowed)
	slices.Sort(sorted)
	return field.NotSupported(at, value, sorted)
}

// immutable reports a field that has changed.
func immutable[T comparable](p *problems, at path, value, old T) {
	if value != old {
		p.add(field.Invalid(at, value, isImmutable).WithOrigin("immutable"))
	}
}

const isImmutable = "field is immutable"

func (p *problems) label(at path, value string) {
	matches(p, at, value, utilvalidation.IsDNS1123Label(value))
}

func (p *problems) subdomain(at path, value string) {
	matches(p, at, value, utilvalidation.IsDNS1123Subdomain(value))
}

func (p *problems) qualified(at path, value string) {
	matches(p, at, value, utilvalidation.IsQualifiedName(value))
}

// ip accepts what upstream accepts in old fields, including leading zeros.
func (p *problems) ip(at path, value string) {
	if utilnet.ParseIPSloppy(value) == nil {
		p.invalid(at, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
	}
}

func (p *problems) portNumber(at path, port int32) {
	matches(p, at, port, utilvalidation.IsValidPortNum(int(port)))
}

func (p *problems) portOrName(at path, port intstr.IntOrString) {
	if port.Type == intstr.String {
		matches(p, at, port.StrVal, utilvalidation.IsValidPortName(port.StrVal))
		return
	}
	matches(p, at, port.IntVal, utilvalidation.IsValidPortNum(int(port.IntVal)))
}

// mode checks the permission bits of a file.
func (p *problems) mode(at path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		p.invalid(at, *mode, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}

// noBacksteps reports "..", with which a path could leave its folder.
func (p *problems) noBacksteps(at path, value string) {
	if slices.Contains(strings.Split(value, "/"), "..") {
		p.invalid(at, value, "must not contain '..'")
	}
}

// descending accepts relative paths that stay below their start.
func (p *problems) descending(at path, value string) {
	if strings.HasPrefix(value, "/") {
		p.invalid(at, value, "must be a relative path")
	}
	p.noBacksteps(at, value)
}

// localFile accepts a descending path whose name is not reserved.
func (p *problems) localFile(at path, value string) {
	p.descending(at, value)
	if strings.HasPrefix(value, "..") && !strings.HasPrefix(value, "../") {
		p.invalid(at, value, "must not start with '..'")
	}
}
