{{/* The names follow those of `helm create`. 50: a StatefulSet's name plus the hash of a revision is a label of 63. */}}
{{- define "fomo-stream.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "fomo-stream.fullname" -}}
{{- $name := include "fomo-stream.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "fomo-stream.releaseLabels" -}}
app.kubernetes.io/name: {{ include "fomo-stream.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* The pods of the service; pods of checks have another component. */}}
{{- define "fomo-stream.selectorLabels" -}}
{{ include "fomo-stream.releaseLabels" . }}
app.kubernetes.io/component: service
{{- end -}}

{{- define "fomo-stream.labels" -}}
{{ include "fomo-stream.selectorLabels" . }}
{{ include "fomo-stream.commonLabels" . }}
{{- end -}}

{{- define "fomo-stream.checkLabels" -}}
{{ include "fomo-stream.releaseLabels" . }}
app.kubernetes.io/component: check
{{ include "fomo-stream.commonLabels" . }}
{{- end -}}

{{- define "fomo-stream.notifySelectorLabels" -}}
{{ include "fomo-stream.releaseLabels" . }}
app.kubernetes.io/component: notify
{{- end -}}

{{- define "fomo-stream.notifyLabels" -}}
{{ include "fomo-stream.notifySelectorLabels" . }}
{{ include "fomo-stream.commonLabels" . }}
{{- end -}}

{{- define "fomo-stream.notifyName" -}}
{{- printf "%s-notify" (include "fomo-stream.fullname" . | trunc 43 | trimSuffix "-") -}}
{{- end -}}

{{- define "fomo-stream.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "fomo-stream.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "fomo-stream.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "fomo-stream.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- $suffix := .Values.gpu.enabled | ternary .Values.gpu.tagSuffix "" -}}
{{- printf "%s:%s%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) $suffix -}}
{{- end -}}
{{- end -}}

{{/* Whether something else than `replicas` decides the number of instances: "true" or nothing. */}}
{{- define "fomo-stream.isScaled" -}}
{{- if or .Values.keda.enabled .Values.autoscaling.enabled }}true{{ end -}}
{{- end -}}

{{/* What is scored, as in settings.topic: those with a section, where it is empty. */}}
{{- define "fomo-stream.selection" -}}
{{- default (keys (default dict .Values.settings.topics) | sortAlpha | join ",") .Values.settings.topic -}}
{{- end -}}

{{/* The names in the selection, as JSON; none if a topic or a section is a pattern: only the service knows those that match. */}}
{{- define "fomo-stream.topics" -}}
{{- $words := list -}}
{{- range splitList "," (include "fomo-stream.selection" .) }}{{ $words = append $words (trim .) }}{{ end -}}
{{- contains "^" (join "," (concat $words (keys (default dict .Values.settings.topics)))) | ternary list (compact $words | uniq) | toJson -}}
{{- end -}}

{{/* The topic if there is one, or its placeholder, as in the names of settings. */}}
{{- define "fomo-stream.topic" -}}
{{- $topics := include "fomo-stream.topics" . | fromJsonArray -}}
{{- if and (eq (len $topics) 1) (not .Values.settings.topics) }}{{ first $topics }}{{ else }}{topic}{{ end -}}
{{- end -}}

{{/* The name that a setting gives to a topic. Arguments: the root, the setting, its default. */}}
{{- define "fomo-stream.named" -}}
{{- default (index . 2) (get (index . 0).Values.settings (index . 1)) | replace "{topic}" (include "fomo-stream.topic" (index . 0)) -}}
{{- end -}}

{{/* Names of topics, with the defaults of the service; nothing where `out` is "none". */}}
{{- define "fomo-stream.out" -}}
{{- $out := include "fomo-stream.named" (list . "out" "{topic}-scores") -}}
{{- if ne $out "none" }}{{ $out }}{{ end -}}
{{- end -}}

{{- define "fomo-stream.deadLetters" -}}
{{- include "fomo-stream.named" (list . "dead-letters" "{topic}-dead-letters") -}}
{{- end -}}

{{/* The default is that of one release only: neither a namespace nor a name of Kubernetes has a dot. 12: of the hash. */}}
{{- define "fomo-stream.group" -}}
{{- $topic := include "fomo-stream.topic" . -}}
{{- $own := printf "%s.%s.%s" .Release.Namespace (include "fomo-stream.fullname" .) $topic -}}
{{- $most := sub 249 (len (printf "-%s-state" $topic)) | max 14 | int -}}
{{- if gt (len $own) $most }}{{ $own = printf "%s-%s" (trunc (sub $most 13 | int) $own) (sha256sum $own | trunc 12) }}{{ end -}}
{{- include "fomo-stream.named" (list . "group" $own) -}}
{{- end -}}

{{- define "fomo-stream.stateTopic" -}}
{{- printf "%s-%s-state" (include "fomo-stream.group" .) (include "fomo-stream.topic" .) -}}
{{- end -}}

{{- define "fomo-stream.strimziVersion" -}}
{{- $newest := "kafka.strimzi.io/v1" -}}
{{- default (.Capabilities.APIVersions.Has $newest | ternary $newest "kafka.strimzi.io/v1beta2") .Values.strimzi.apiVersion -}}
{{- end -}}
