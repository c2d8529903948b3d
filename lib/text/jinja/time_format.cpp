// strftime in the C locale, of a time zone-less UTC time (as datetime.now() gives it in a container).
#include "text/jinja/interpreter.h"

namespace headrace::text::jinja {
namespace {

constexpr std::string_view kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
constexpr std::string_view kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                        "July",    "August",   "September", "October", "November", "December"};

struct CivilTime {
  int64_t year;
  int month, day, hour, minute, second, weekday, day_of_year;
};

// Days since 1970 to a date of the proleptic Gregorian calendar, by eras of 400 years that start in March.
CivilTime civil_time(int64_t unix_seconds) {
  int64_t days = unix_seconds / 86400;
  int64_t rest = unix_seconds % 86400;
  if (rest < 0) {
    rest += 86400;
    --days;
  }
  CivilTime out{};
  out.hour = static_cast<int>(rest / 3600);
  out.minute = static_cast<int>(rest / 60 % 60);
  out.second = static_cast<int>(rest % 60);
  out.weekday = static_cast<int>(((days + 4) % 7 + 7) % 7);
  const int64_t shifted = days + 719468;
  const int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
  const int64_t day_of_era = shifted - era * 146097;
  const int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const int64_t day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t month_from_march = (5 * day_from_march + 2) / 153;
  out.day = static_cast<int>(day_from_march - (153 * month_from_march + 2) / 5 + 1);
  out.month = static_cast<int>(month_from_march < 10 ? month_from_march + 3 : month_from_march - 9);
  out.year = year_of_era + era * 400 + (out.month <= 2 ? 1 : 0);
  const bool leap = (out.year % 4 == 0 && out.year % 100 != 0) || out.year % 400 == 0;
  constexpr int kBefore[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  out.day_of_year = kBefore[out.month - 1] + out.day + (leap && out.month > 2 ? 1 : 0);
  return out;
}

void append_time(std::string& out, const CivilTime& time, std::string_view format) {
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    if (++i >= format.size()) {
      out += '%';
      return;
    }
    // "%-d": no padding.
    const bool bare = format[i] == '-' && i + 1 < format.size();
    if (bare) ++i;
    const auto number = [&](int64_t value, int width, char pad = '0') {
      if (bare) {
        out += fmt::format("{}", value);
      } else if (pad == ' ') {
        out += fmt::format("{:{}}", value, width);
      } else {
        out += fmt::format("{:0{}}", value, width);
      }
    };
    const int hour12 = time.hour % 12 == 0 ? 12 : time.hour % 12;
    switch (format[i]) {
      case 'a': out += kDays[time.weekday].substr(0, 3); break;
      case 'A': out += kDays[time.weekday]; break;
      case 'b':
      case 'h': out += kMonths[time.month - 1].substr(0, 3); break;
      case 'B': out += kMonths[time.month - 1]; break;
      case 'c': append_time(out, time, "%a %b %e %H:%M:%S %Y"); break;
      case 'C': number(time.year / 100, 2); break;
      case 'd': number(time.day, 2); break;
      case 'D':
      case 'x': append_time(out, time, "%m/%d/%y"); break;
      case 'e': number(time.day, 2, ' '); break;
      case 'f': out += "000000"; break;
      case 'F': append_time(out, time, "%Y-%m-%d"); break;
      case 'H': number(time.hour, 2); break;
      case 'I': number(hour12, 2); break;
      case 'j': number(time.day_of_year, 3); break;
      case 'k': number(time.hour, 2, ' '); break;
      case 'l': number(hour12, 2, ' '); break;
      case 'm': number(time.month, 2); break;
      case 'M': number(time.minute, 2); break;
      case 'n': out += '\n'; break;
      case 'p': out += time.hour < 12 ? "AM" : "PM"; break;
      case 'r': append_time(out, time, "%I:%M:%S %p"); break;
      case 'R': append_time(out, time, "%H:%M"); break;
      case 'S': number(time.second, 2); break;
      case 't': out += '\t'; break;
      case 'T':
      case 'X': append_time(out, time, "%H:%M:%S"); break;
      case 'u': number(time.weekday == 0 ? 7 : time.weekday, 1); break;
      case 'U': number((time.day_of_year + 6 - time.weekday) / 7, 2); break;
      case 'w': number(time.weekday, 1); break;
      case 'W': number((time.day_of_year + 6 - (time.weekday + 6) % 7) / 7, 2); break;
      case 'y': number((time.year % 100 + 100) % 100, 2); break;
      case 'Y': out += fmt::format("{}", time.year); break;
      case 'z':
      case 'Z': break;
      case '%': out += '%'; break;
      default: fail("strftime_now: the directive '%{}' is not supported", format[i]);
    }
  }
}

}  // namespace

std::string format_time(int64_t unix_seconds, std::string_view format) {
  // The years 1 to 9999, which are datetime's.
  if (unix_seconds < -62135596800 || unix_seconds > 253402300799) fail("the time is not within the years 1 to 9999");
  std::string out;
  append_time(out, civil_time(unix_seconds), format);
  return out;
}

}  // namespace headrace::text::jinja
